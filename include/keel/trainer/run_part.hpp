// What a run of several parts knows of one of them, whatever its recipe; and all of them together, as checkpoints and evaluations see
// a run.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <keel/checkpoint/trained_optimizer.hpp>
#include <keel/core/outcome.hpp>
#include <keel/core/parameters.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/recipe_numbers.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class optimizer_shares;

/// What a part's updates came to since the last boundary of the run.
struct part_figures {
  std::int64_t applied = 0;
  std::int64_t skipped = 0;
  std::int64_t clipped = 0;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  double loss = 0.0;                                   ///< summed over the applied updates
  double gradient_norm = 0.0;                          ///< as the loss
  std::vector<std::pair<std::string, double>> losses;  ///< of the last update that named some
  std::optional<result::skipped> why;                  ///< of the last that was skipped
};

class run_part {
 public:
  virtual ~run_part() = default;
  run_part(run_part const&) = delete;
  run_part& operator=(run_part const&) = delete;

  std::string const& name() const { return name_; }
  /// By the names that the run's checkpoints have for them.
  parameter_list const& named_parameters() const { return parameters_; }
  part_figures take_figures() { return std::exchange(figures_, {}); }
  bool has_news() const { return figures_.applied + figures_.skipped > 0; }

  virtual torch::nn::Module& model() = 0;
  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual config const& recipe_value() const = 0;
  virtual run_facts const& facts() = 0;
  /// Of its optimizer's state, where each of several ranks has some; or null.
  virtual optimizer_shares* shares() = 0;
  virtual double learning_rate() const = 0;
  virtual double loss_scale() const = 0;
  virtual std::int64_t updates() const = 0;
  virtual std::int64_t skipped() const = 0;
  virtual memory_settings const& relief() const = 0;
  virtual bool at_boundary() const = 0;
  virtual bool is_half_updated() const = 0;
  virtual void settle() = 0;
  /// All ranks: throws world_error for parameters, buffers or options that are not rank 0's.
  virtual void verify_replicas() = 0;
  virtual void drop_update() = 0;
  virtual std::optional<rollback_request> take_rollback_request() = 0;
  virtual double highest_rate() = 0;
  virtual double lowered() = 0;
  virtual void lower(double factor) = 0;
  virtual void take_loaded_rates() = 0;
  /// An evaluation of the run came to this.
  virtual void evaluated(double value, bool larger_is_better) = 0;
  virtual void require_parameters_in_place() = 0;
  virtual void unfreeze(std::vector<at::Tensor> const& which, double rate) = 0;
  virtual bool refreeze_last_group() = 0;
  virtual void restore_on_skip(program_state& state) = 0;
  virtual void restore_on_skip(torch::nn::Module& other) = 0;
  virtual void forget(torch::nn::Module& other) = 0;
  virtual void visit(state_writer& archive) = 0;
  virtual void visit(state_reader& archive) = 0;

 protected:
  explicit run_part(std::string name) : name_(std::move(name)) {}
  /// By what name checkpoints have its model.
  void name_model(std::string name) { model_name_ = std::move(name); }
  void name_parameters(parameter_list list) {
    for (std::string& one : list.names) one = model_name_ + "." + one;
    parameters_ = std::move(list);
  }
  part_figures figures_;

 private:
  std::string name_;
  std::string model_name_;
  parameter_list parameters_;
};

/// All parts of a run. Has what checkpoint_manager and evaluator ask of a step.
class run_parts final : public checkpointed_step {
 public:
  run_parts() : joint_(std::make_shared<torch::nn::Module>("run")) {}

  /// `follows`: the part whose parameters this one may have too, because it trains behind it; or null. Throws error (E11) for a name
  /// that cannot stand in a checkpoint or is another part's, and for a parameter that another part trains, and names both.
  void add(run_part& one, run_part const* follows);
  /// Its model may be gone from here on. Where the run has made updates, what asks for its state next throws error (E12).
  void remove(run_part& one);
  /// One that could not be made.
  void take_back(run_part& one);
  /// Throws error (E11) where another part trains one of these, and names both.
  void require_free(run_part const& wanted_by, std::vector<at::Tensor> const& which) const;
  std::vector<run_part*> const& all() const { return all_; }
  /// By what name checkpoints have its model: that of the part it follows.
  std::string const& model_name(run_part const& one, run_part const* follows) const {
    return follows == nullptr ? one.name() : follows->name();
  }

  // What all of them are.
  bool at_boundary() const override;
  /// A part was updated since the figures were taken.
  bool has_news() const;
  void drop_updates() {
    for (run_part* const one : all_) one->drop_update();
  }
  /// Boundaries of the run so far at which something had been applied.
  std::int64_t updates() const override { return updates_; }
  void count(bool applied) { updates_ += applied ? 1 : 0; }
  std::int64_t skipped() const;

  // As checkpoints see it.
  torch::nn::Module& model() override { return *joint_; }
  torch::optim::Optimizer& optimizer() override { return first().optimizer(); }
  parameter_list const& parameters() override { return first().named_parameters(); }
  run_facts const& facts() override { return first().facts(); }
  std::vector<trained_optimizer> trained(config const& present) override;
  void unfreeze(std::string const& part, std::vector<at::Tensor> const& which, double rate) override {
    named(part).unfreeze(which, rate);
  }
  bool refreeze_last_group(std::string const& part) override { return named(part).refreeze_last_group(); }
  std::optional<rollback_request> take_rollback_request(config& by) override;
  std::int64_t rollback_distance(config const& recipe) override;
  double highest_rate() override { return first().highest_rate(); }
  double lowered() override { return first().lowered(); }
  void lower(double factor) override {
    for (run_part* const one : all_) one->lower(factor);
  }
  void take_loaded_rates() override {
    for (run_part* const one : all_) one->take_loaded_rates();
  }
  moving_average* average() override { return nullptr; }
  void require_parameters_in_place() override {
    for (run_part* const one : all_) one->require_parameters_in_place();
  }
  bool is_half_updated() const override;
  void verify_replicas() {
    for (run_part* const one : all_) one->verify_replicas();
  }
  void settle() override {
    for (run_part* const one : all_) one->settle();
  }
  void visit(state_writer& archive) override { visit_all(archive); }
  void visit(state_reader& archive) override { visit_all(archive); }

  std::int64_t pieces() const override { return 1; }
  memory_settings const& relief() override { return first().relief(); }

 private:
  struct nested {
    run_part& one;
    template <class Archive>
    void visit(Archive& archive) {
      if constexpr (std::is_same_v<Archive, state_writer> || std::is_same_v<Archive, state_reader>) one.visit(archive);
    }
  };
  template <class Archive>
  void visit_all(Archive& archive);
  /// Throws error (E12) for a run without parts.
  run_part& first() const;
  /// One of trained().
  run_part& named(std::string const& part) const;

  std::shared_ptr<torch::nn::Module> joint_;
  std::vector<run_part*> all_;
  std::string gone_;  ///< a part that was destroyed while the run went on
  std::int64_t updates_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_part.ipp>
#endif
