// The models of a run, one or several, for its loop, its checkpoints and its evaluations.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/trained_optimizer.hpp>
#include <keel/config/config.hpp>
#include <keel/core/parameters.hpp>
#include <keel/ema/moving_average.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/step/step_engine.hpp>
#include <keel/step/update_guards.hpp>
#include <keel/trainer/describe_run.hpp>
#include <keel/trainer/run_part.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class trained_models {
 public:
  /// Constructs an empty list; add() adds parts.
  trained_models() : joint_(std::make_shared<torch::nn::Module>("run")) {}
  /// Constructs the list of one model. `step` must outlive this object.
  explicit trained_models(step_engine& step) : only_(std::in_place, step) { all_.push_back(&*only_); }
  trained_models(trained_models const&) = delete;
  trained_models& operator=(trained_models const&) = delete;

  /// Adds a part. `follows`: the part whose parameters this one may share because it trains after it; or null. Throws error (E11) for an
  /// invalid or duplicate name, and for a parameter that another part trains; the message names both.
  void add(run_part& one, run_part const* follows);
  /// Removes a part, whose model may be destroyed afterwards. If the run has made updates, the next access to its state throws error (E12).
  void remove(run_part& one);
  /// Removes a part whose construction failed.
  void remove_unfinished(run_part& one);
  /// Throws error (E11) if another part trains one of these parameters; the message names both.
  void require_unowned(run_part const& wanted_by, std::vector<at::Tensor> const& which) const;
  std::vector<run_part*> const& all() const { return all_; }
  bool has_parts() const { return !only_; }
  /// Returns the model's name in checkpoints: that of the part that `one` follows, if any.
  static std::string const& model_name(run_part const& one, run_part const* follows) {
    return follows == nullptr ? one.name() : follows->name();
  }

  /// The model, or one module with the models of all parts as children.
  torch::nn::Module& model() { return only_ ? only_->step().model() : *joint_; }
  // With several models, these return the values of the first model. They throw error (E12) for a run without parts.
  torch::optim::Optimizer& optimizer() { return first().step().optimizer(); }
  parameter_list const& parameters() const { return first().parameters(); }
  run_facts const& facts() const { return first().step().facts(); }
  double learning_rate() const { return first().step().learning_rate(); }
  double highest_rate() const { return first().step().schedule().highest(0); }
  double lowered() const { return first().step().schedule().lowered(); }
  /// Memory-saving measures in effect.
  memory_settings const& relief() const { return first().step().relief(); }

  /// The moving averages that the models keep.
  std::vector<moving_average*> averages() const;

  // For a single model; with several models these return 1 and 0.
  /// Number of pieces that a micro-batch is split into.
  std::int64_t pieces() const { return only_ ? only_->step().pieces() : 1; }
  double clip_fraction() const { return only_ ? only_->step().clip_fraction() : 0.0; }

  /// The device of the parameters; the CPU for a run without parts.
  at::Device device() const { return all_.empty() ? at::Device(at::kCPU) : parameters().tensors.front().device(); }
  /// Applied updates of the run. With several models: boundaries at which at least one part had applied an update.
  std::int64_t updates() const { return only_ ? only_->step().updates() : updates_; }
  /// With several models: counts a boundary.
  void count_boundary(bool applied) { updates_ += applied ? 1 : 0; }
  std::int64_t skipped() const;
  bool at_boundary() const;
  /// True if a part was updated since its statistics were last taken.
  bool has_new_results() const;
  /// True if an optimizer threw during its step.
  bool is_half_updated() const;
  void settle();
  void drop_updates();
  void flush_layer_metrics();
  /// Collective. Throws world_error if parameters, buffers or options of the optimizer differ from rank 0's.
  void verify_replicas();
  void require_average_swapped_out();
  /// All-gathers the full parameters of all models for the lifetime of the returned object. Collective.
  [[nodiscard]] gathered_parameters gather_parameters();
  /// Returns a function that gathers one parameter that shard::zero<3> shards, and returns other tensors as they are. Its calls are collective.
  whole_tensor_function whole_tensor_access();
  /// Call before parameters are written: completes gathers of units that were begun. Collective.
  void end_passes();
  /// True if a model has shard::zero<3>.
  bool shards_parameters() const;
  /// begin_evaluation_batch(): call before each batch of an evaluation. end_evaluation(): call after the last one; a rank with fewer
  /// batches then takes part in the gathers of the others. Both are collective.
  void begin_evaluation_batch();
  void end_evaluation();
  /// Call if an evaluation threw.
  void cancel_evaluation() noexcept;

  /// All optimizers, each with its recipe and facts.
  std::vector<trained_optimizer> trained();
  /// Adds or removes unfrozen parameter groups so that the optimizers have the same groups as the checkpoint `state`. Stops at a group
  /// whose parameters the model does not have.
  void match_groups(nlohmann::json const& state);
  /// True if match_groups() would change nothing.
  bool has_groups_of(nlohmann::json const& state);
  /// Returns the rollback that a guard requested, or nullopt. Sets `by` to the recipe of the part that requested it.
  std::optional<rollback_request> take_rollback_request(config& by);
  /// The maximum age, in updates, of a fault for which a part rolls back; 0 if no part rolls back.
  std::int64_t rollback_distance() const;
  void lower_learning_rates(double factor);
  void adopt_loaded_rates();
  /// Passes the value of an evaluation to the schedules.
  void evaluated(double value, bool larger_is_better);
  /// The longest warm-up of the schedules.
  std::int64_t warmup_updates() const;

  void visit(state_writer& archive) { visit_all(archive); }
  void visit(state_reader& archive) { visit_all(archive); }

 private:
  template <class Archive>
  void visit_all(Archive& archive);
  run_part& first() const;

  std::optional<run_part> only_;
  std::shared_ptr<torch::nn::Module> joint_;
  std::vector<run_part*> all_;
  std::string destroyed_part_;  ///< name of a part that was destroyed during the run
  std::int64_t updates_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/trained_models.ipp>
#endif
