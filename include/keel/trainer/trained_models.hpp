// The models of a run, one or several, as its loop, its checkpoints and its evaluations see them.
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
#include <keel/trainer/run_part.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class trained_models {
 public:
  /// Of the parts that are added.
  trained_models() : joint_(std::make_shared<torch::nn::Module>("run")) {}
  /// Of one model. The step outlives this.
  explicit trained_models(step_engine& step) : only_(std::in_place, step) { all_.push_back(&*only_); }
  trained_models(trained_models const&) = delete;
  trained_models& operator=(trained_models const&) = delete;

  /// `follows`: the part whose parameters this one may have too, because it trains after it; or null. Throws error (E11) for a name
  /// that a checkpoint cannot have or that is another part's, and for a parameter that another part trains, and names both.
  void add(run_part& one, run_part const* follows);
  /// Its model may be gone from here on. Where the run has made updates, what asks for its state next throws error (E12).
  void remove(run_part& one);
  /// One that could not be made.
  void remove_unfinished(run_part& one);
  /// Throws error (E11) where another part trains one of these, and names both.
  void require_unowned(run_part const& wanted_by, std::vector<at::Tensor> const& which) const;
  std::vector<run_part*> const& all() const { return all_; }
  bool has_parts() const { return !only_; }
  /// By what name checkpoints have its model: that of the part it follows.
  static std::string const& model_name(run_part const& one, run_part const* follows) {
    return follows == nullptr ? one.name() : follows->name();
  }

  /// With the parameters of all.
  torch::nn::Module& model() { return only_ ? only_->step().model() : *joint_; }
  // Of several models the first one's, which say where and how the run trains. They throw error (E12) for a run without parts.
  torch::optim::Optimizer& optimizer() { return first().step().optimizer(); }
  parameter_list const& parameters() const { return first().parameters(); }
  run_facts const& facts() const { return first().step().facts(); }
  double learning_rate() const { return first().step().learning_rate(); }
  double highest_rate() const { return first().step().schedule().highest(0); }
  double lowered() const { return first().step().schedule().lowered(); }
  /// Is done for memory.
  memory_settings const& relief() const { return first().step().relief(); }

  // Of one model; of several nothing.
  moving_average* average() { return only_ ? only_->step().average_or_null() : nullptr; }
  /// Into how many pieces a micro-batch is cut.
  std::int64_t pieces() const { return only_ ? only_->step().pieces() : 1; }
  double clip_fraction() const { return only_ ? only_->step().clip_fraction() : 0.0; }

  /// Where its parameters are; of a run without parts the CPU.
  at::Device device() const { return all_.empty() ? at::Device(at::kCPU) : parameters().tensors.front().device(); }
  /// Updates of the run that were applied; of several models the boundaries at which something had been applied.
  std::int64_t updates() const { return only_ ? only_->step().updates() : updates_; }
  /// Of several models, at a boundary.
  void count(bool applied) { updates_ += applied ? 1 : 0; }
  std::int64_t skipped() const;
  bool at_boundary() const;
  /// A part was updated since its figures were taken.
  bool has_new_results() const;
  /// The optimizer of one threw inside its step.
  bool is_half_updated() const;
  void settle();
  void drop_updates();
  void flush_layer_metrics();
  /// All ranks: throws world_error for parameters, buffers or options that are not rank 0's.
  void verify_replicas();
  void require_parameters_in_place();

  /// All optimizers, each with its recipe and facts.
  std::vector<trained_optimizer> trained();
  /// A checkpoint has groups of parameters that were unfrozen in between, or lacks them after a rollback: gives the optimizers the groups
  /// that the checkpoint `state` has, where the model has their parameters.
  void match_groups(nlohmann::json const& state);
  /// A guard wants the run back at a checkpoint, by the recipe that `by` is then.
  std::optional<rollback_request> take_rollback_request(config& by);
  /// How many updates old a fault may be that it rolls back from; 0: it does not roll back.
  std::int64_t rollback_distance() const;
  void lower(double factor);
  void adopt_loaded_rates();
  /// An evaluation of the run has this value.
  void evaluated(double value, bool larger_is_better);
  /// The longest warm-up of their schedules.
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
  std::string destroyed_part_;  ///< a part that was destroyed while the run went on
  std::int64_t updates_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/trained_models.ipp>
#endif
