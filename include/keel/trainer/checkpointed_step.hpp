// What checkpoints see of a step, or of several that are one run.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/trained_optimizer.hpp>
#include <keel/config/config.hpp>
#include <keel/core/parameters.hpp>
#include <keel/ema/moving_average.hpp>
#include <keel/schedule/lr_schedule.hpp>
#include <keel/step/step_engine.hpp>
#include <keel/step/update_guards.hpp>
#include <keel/trainer/rollback.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// What checkpoints need of a step, or of several that are one run, whatever their recipes.
class checkpointed_step {
 public:
  /// With the parameters of all.
  virtual torch::nn::Module& model() = 0;
  /// Of several the first one's, as are the optimizer and the parameters, which say where and how it trains.
  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual parameter_list const& parameters() = 0;
  virtual run_facts const& facts() = 0;
  /// All optimizers. `present` is the run's recipe with its facts.
  virtual std::vector<trained_optimizer> trained(config const& present) = 0;
  // Of the optimizer of one part, or the only one: a checkpoint has groups of parameters that were unfrozen in between, or lacks them
  // behind a rollback.
  virtual void unfreeze(std::string const& part, std::vector<at::Tensor> const& which, double rate) = 0;
  /// False where no group was unfrozen.
  virtual bool refreeze_last_group(std::string const& part) = 0;
  /// A guard wants the run back at a checkpoint, by the recipe that `by` is then.
  virtual std::optional<rollback_request> take_rollback_request(config& by) = 0;
  /// How many updates old a fault may be that it rolls back from; 0: it does not roll back.
  virtual std::int64_t rollback_distance(config const& recipe) = 0;
  // The learning rates.
  virtual double highest_rate() = 0;
  virtual double lowered() = 0;
  virtual void lower(double factor) = 0;
  virtual void take_loaded_rates() = 0;
  /// Null where the recipe has none, and of several models.
  virtual moving_average* average() = 0;
  virtual void require_parameters_in_place() = 0;
  virtual std::int64_t updates() const = 0;
  /// What is done for memory, and into how many pieces a micro-batch is cut.
  virtual memory_settings const& relief() = 0;
  virtual std::int64_t pieces() const = 0;
  virtual bool at_boundary() const = 0;
  virtual bool is_half_updated() const = 0;
  virtual void settle() = 0;
  virtual void visit(state_writer& archive) = 0;
  virtual void visit(state_reader& archive) = 0;

 protected:
  checkpointed_step() = default;
  checkpointed_step(checkpointed_step const&) = default;
  checkpointed_step& operator=(checkpointed_step const&) = default;
  ~checkpointed_step() = default;
};

/// A step of one recipe, as checkpoints see it; the step outlives this.
class checkpointed final : public checkpointed_step {
 public:
  explicit checkpointed(step_engine& step) : step_(step) {}
  torch::nn::Module& model() override { return step_.model(); }
  torch::optim::Optimizer& optimizer() override { return step_.optimizer(); }
  parameter_list const& parameters() override { return step_.parameters(); }
  run_facts const& facts() override { return step_.facts(); }
  std::vector<trained_optimizer> trained(config const& present) override {
    return {{"", &step_.optimizer(), &step_.parameters(), present, step_.ranks().shares()}};
  }
  void unfreeze(std::string const& /*part*/, std::vector<at::Tensor> const& which, double rate) override {
    step_.unfreeze(which, rate);
  }
  bool refreeze_last_group(std::string const& /*part*/) override { return step_.refreeze_last_group(); }
  std::optional<rollback_request> take_rollback_request(config& by) override {
    by = step_.recipe_value();
    return step_.guards().take_rollback_request();
  }
  std::int64_t rollback_distance(config const& recipe) override { return keel::rollback_distance(recipe); }
  double highest_rate() override { return step_.schedule().highest(0); }
  double lowered() override { return step_.schedule().lowered(); }
  void lower(double factor) override { step_.schedule().lower(factor); }
  void take_loaded_rates() override { step_.schedule().take_loaded_rates(); }
  void require_parameters_in_place() override {
    if (auto* const kept = average()) kept->require_parameters_in_place();
  }
  moving_average* average() override { return step_.average_or_null(); }
  std::int64_t updates() const override { return step_.updates(); }
  memory_settings const& relief() override { return step_.relief(); }
  std::int64_t pieces() const override { return step_.pieces(); }
  bool at_boundary() const override { return step_.at_boundary(); }
  bool is_half_updated() const override { return step_.is_half_updated(); }
  void settle() override { step_.settle(); }
  void visit(state_writer& archive) override { step_.visit(archive); }
  void visit(state_reader& archive) override { step_.visit(archive); }

 private:
  step_engine& step_;
};

/// Gives the optimizers the groups that the checkpoint `state` has, where the model has their parameters.
void match_groups(checkpointed_step& step, config const& present, nlohmann::json const& state);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/checkpointed_step.ipp>
#endif
