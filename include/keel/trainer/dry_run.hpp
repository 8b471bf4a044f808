// Dry runs of a trainer or part, to use before a long run. They leave the run unchanged: parameters, buffers, optimizer state, registered
// state, random numbers, counters and files.
//     keel::lr_range_result range = run.lr_range_test(batches, loss_of);   which learning rates can this run use?
//     keel::overfit_result fit = run.overfit_one_batch(batch, loss_of);    can the model memorize one batch? If not, something is broken
// Both train with the recipe's clipping, precision and loss scale, but with other learning rates and fresh optimizer state. An optimizer
// that keeps state outside of state() must restore it itself; keel's optimizers do. The calls are in dry_run_calls.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/buffers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/mode_scope.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/gradients/saved_gradients.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/metrics/operation_count.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/schedule/lr_range_test.hpp>
#include <keel/schedule/lr_schedule.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/step.hpp>
#include <keel/trainer/registered_state.hpp>
#include <keel/trainer/run_loop.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The losses while overfitting one batch.
struct overfit_result {
  std::vector<double> losses;  ///< one per update
  /// True if the last loss is below `share` times the first.
  bool learned(double share = 0.1) const { return !losses.empty() && losses.back() < share * losses.front(); }
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns the length of a run in updates, for its dry runs; 0: unknown.
inline std::int64_t dry_run_length(step_engine const& step, run_loop const& loop) {
  return step.facts().is_length_pending ? run_facts::length_of_batches : loop.length();
}

/// The objects that a dry run or a replay uses. They must outlive it.
struct dry_run_subject {
  step_engine& step;
  run_loop& loop;
  step_observer const& observer;                     ///< the observer of the step
  std::string part = {};                             ///< name of the part; empty for a trainer
  std::int64_t length = dry_run_length(step, loop);  ///< length of the run in updates; 0: unknown
};

/// The random generator state of the host and of each device that holds a model of the run.
inline std::vector<random_snapshot> random_state_of(trained_models const& models) {
  std::vector<random_snapshot> all;
  std::vector<at::DeviceType> taken;
  for (run_part const* const one : models.all()) {
    at::DeviceType const device = one->step().parameters().device;
    if (std::find(taken.begin(), taken.end(), device) != taken.end()) continue;
    taken.push_back(device);
    all.push_back(random_snapshot::take(device));
  }
  return all;
}

/// Throws error (E12) under shard::zero<3>, where a rank cannot run the model alone.
inline step_engine& require_whole_parameters(step_engine& step) {
  if (step.ranks().shards_parameters())
    throw error("E12",
                "preflight, lr_range_test, overfit_one_batch, replay and narrow_down run the model on one rank, which "
                "keel::shard::zero<3> does not support. Run them under keel::shard::zero<2>, or on one rank.");
  return step;
}

/// RAII: saves the state that a dry run changes, and restores it on destruction: all models of the run, one optimizer, the registered state
/// and the random generators.
class saved_state {
 public:
  explicit saved_state(dry_run_subject const& of)
      : optimizer_(require_whole_parameters(of.step).optimizer()),
        program_(of.loop.checkpoints().registered()),
        registered_(program_.capture_all()),
        modes_(std::in_place, of.loop.models().model()),
        buffers_(of.loop.models().model()),
        random_(random_state_of(of.loop.models())),
        gradients_(of.loop.models().model().parameters()) {
    at::NoGradGuard no_grad;
    buffers_.take();
    for (at::Tensor const& one : of.loop.models().model().parameters()) live_.push_back(one.detach());
    for (at::Tensor const& one : live_) copies_.push_back(one.clone());
    for (auto& group : optimizer_.param_groups()) rates_.push_back(group.options().get_lr());
    if (auto* const engine = dynamic_cast<update_engine*>(&optimizer_)) engine_ = engine->take_aside();
    // Move instead of copy: the dry run creates its own state.
    state_ = std::move(optimizer_.state());
    optimizer_.state() = {};
  }
  saved_state(saved_state const&) = delete;
  saved_state& operator=(saved_state const&) = delete;
  ~saved_state() {
    at::NoGradGuard no_grad;
    // First, because a module's train() may change its parameters.
    modes_.reset();
    for (std::size_t i = 0; i < live_.size(); ++i) live_[i].copy_(copies_[i]);
    buffers_.restore();
    program_.restore_all(registered_);
    optimizer_.state() = std::move(state_);
    if (engine_) engine_();
    for (std::size_t i = 0; i < rates_.size(); ++i) optimizer_.param_groups()[i].options().set_lr(rates_[i]);
    for (random_snapshot const& one : random_) one.restore();
  }

 private:
  torch::optim::Optimizer& optimizer_;
  program_state& program_;
  std::vector<field_copies> registered_;
  std::optional<mode_scope> modes_;
  buffer_snapshot buffers_;
  std::vector<random_snapshot> random_;
  saved_gradients gradients_;
  std::vector<at::Tensor> live_;
  std::vector<at::Tensor> copies_;
  std::vector<double> rates_;
  std::remove_cvref_t<decltype(std::declval<torch::optim::Optimizer&>().state())> state_;
  std::function<void()> engine_;
};

/// Trains until `on_update(updated)` returns false, an update is skipped, or the recipe would end the run. Updates that are skipped because
/// the loss scale overflowed do not count: the scaler causes them while it adapts. Throws out_of_memory_error (E09) if the ladder has no
/// rung left, and data_error (E06) for empty `batches`.
template <class Step, class Batches, class LossOf, class OnUpdate>
void dry_run_updates(Step& step, Batches& batches, LossOf& loss_of, OnUpdate&& on_update) {
  auto const should_continue = [&](step_outcome const& one) {
    if (one.is<result::accumulated>()) return true;
    if (auto const* const updated = one.get_if<result::updated>()) return on_update(*updated);
    if (auto const* const ended = one.get_if<result::gave_up>()) {
      throw out_of_memory_error("E09", "memory ran out in a dry run: " + ended->detail + ". Make the batch smaller.");
    }
    auto const* const skipped = one.get_if<result::skipped>();
    return skipped != nullptr && skipped->why == reason::scale_overflow;
  };
  try {
    for (std::int64_t epoch = 0;; ++epoch) {
      bool any = false;
      bool const enough = with_epoch(batches, epoch, [&](auto at, auto const& end) {
        try {
          for (; at != end; ++at) {
            any = true;
            step_outcome const launched = step(*at, std::ref(loss_of));
            if (!should_continue(step.settle().value_or(launched))) return true;
          }
          step.ranks().end_of_data(step.attempted());
        } catch (peer_data_exhausted const&) {
          // Another rank has no more batches, so all ranks start the next pass.
        }
        return false;
      });
      if (enough) return;
      if (!any) {
        throw data_error("E06", "the dry run has no data: the batches are empty. Pass at least one batch.");
      }
    }
  } catch (nonfinite_error const&) {
    // The recipe would end the run here. That is a result of the dry run, not an error.
  } catch (diverged_error const&) {
    // The recipe would end the run here, too.
  }
}

/// The observer of a dry run's step. Disables traces of incidents, because a dry run only needs outcomes.
class dry_run_observer final : public step_observer {
 public:
  /// `of`: the observer of the run's own step, which must outlive this one.
  explicit dry_run_observer(step_observer const& of) : of_(of) {}
  bool traces_incidents() const override { return false; }
  config with_run_facts(config const& value) const override { return of_.with_run_facts(value); }

 private:
  step_observer const& of_;
};

/// Which ranks take part in the dry run.
enum class dry_run_ranks : bool { all_ranks, this_rank };

/// A temporary step for a dry run, with the model, optimizer, recipe and current rungs of the run's own step.
template <class Step>
class dry_run_step {
 public:
  dry_run_step(dry_run_subject const& of, world_of_ranks const& world)
      : observer_(of.observer),
        step_(of.step.model(), of.step.optimizer(), of.step.recipe_numbers(), of.length, observer_, world) {
    step_.ladder().copy_position(of.step.ladder());
    step_.restore_on_skip(of.loop.checkpoints().registered());
    for (run_part* const other : of.loop.models().all()) {
      if (&other->step().model() != &of.step.model()) step_.restore_on_skip(other->step().model());
    }
  }
  Step& operator*() { return step_; }

 private:
  dry_run_observer observer_;
  Step step_;
};

/// Sets the learning rates of the parameter groups to their base rates, which a schedule scales.
inline void set_base_rates(step_engine& step) {
  auto& groups = step.optimizer().param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(step.schedule().highest(i));
}

/// Trains with a step that is configured like the run's own, and restores everything afterwards. Use one object per call.
template <class Step>
class dry_run {
  static constexpr bool is_strict = Step::configured.determinism.kind == determinism::kind::strict;

 public:
  /// Throws error (E12) while an update is open.
  explicit dry_run(dry_run_subject const& of, dry_run_ranks caller = dry_run_ranks::all_ranks) : of_(of), caller_(caller) {
    of_.loop.require_no_open_update("a dry run");
  }

  template <class Batches, class LossOf>
  lr_range_result lr_range_test(Batches& batches, LossOf& loss_of, lr_range_options const& options) {
    require_sound_range(options);
    lr_range_result result;
    try_out([&](auto& step) {
      double const own = step.schedule().highest(0);
      if (!(own > 0.0)) throw error("E12", "the learning rate of the first parameter group must be positive. Set it above 0.");
      double const start = options.lowest / own;
      double const growth = std::log(options.highest / options.lowest) / static_cast<double>(options.updates - 1);
      step.schedule() = lr_schedule(
          step.optimizer(), schedule::constant::configured, options.updates,
          [=](std::int64_t update, std::int64_t) { return start * std::exp(growth * static_cast<double>(update)); });
      range_points points(options, result);
      dry_run_updates(step, batches, loss_of, points);
    });
    result.diverged = static_cast<std::int64_t>(result.points.size()) < options.updates;
    result.steepest = steepest_rate(result.points);
    return result;
  }

  template <class Batch, class LossOf>
  overfit_result overfit_one_batch(Batch const& batch, LossOf& loss_of, std::int64_t updates) {
    if (updates < 1) throw error("E12", "overfit_one_batch() needs at least 1 update. Omit the number to use 200.");
    overfit_result result;
    try_out([&](auto& step) {
      step.schedule() = lr_schedule(step.optimizer(), schedule::constant::configured, updates);
      std::vector<Batch> const again{batch};
      dry_run_updates(step, again, loss_of, [&](result::updated const& updated) {
        result.losses.push_back(updated.loss);
        return static_cast<std::int64_t>(result.losses.size()) < updates;
      });
    });
    return result;
  }

  /// Counts the floating-point operations per token of this micro-batch, forward and backward. Throws error (E12) if it has no tokens.
  template <class Batch, class LossOf>
  double count_operations(Batch const& batch, LossOf& loss_of) {
    std::int64_t const tokens = batch_traits<Batch>::tokens(batch);
    if (tokens < 1)
      throw error("E12", "count_operations() needs a batch with tokens or rows, but this batch has none. Pass another batch.");
    deterministic_scope const deterministic(is_strict);
    saved_state const saved(of_);
    step_engine& step = of_.step;
    auto gradients = keel::begin_update(step.parameters().tensors, 1.0, at::Tensor());
    double const all = keel::count_operations([&] {
      weighted_loss loss;
      {
        autocast_scope const autocast(step.parameters().device, step.environment().autocast(Step::configured.precision.kind));
        // Disable recomputation, because it does not count as work of the model.
        unit_scope const units(recompute_kind::none);
        attention_scope const attention(step.relief().attention);
        loss = as_weighted_loss(loss_of(batch), batch_traits<Batch>::rows(batch));
      }
      require_trainable(loss);
      gradients.add(loss.mean, loss.weight);
    });
    return all / static_cast<double>(tokens);
  }

 private:
  template <class Train>
  void try_out(Train const& train) {
    deterministic_scope const deterministic(is_strict);
    saved_state const saved(of_);
    set_base_rates(of_.step);
    dry_run_step<Step> trial(of_, caller_ == dry_run_ranks::all_ranks ? of_.step.ranks().world() : world_of_ranks());
    train(*trial);
  }

  dry_run_subject of_;
  dry_run_ranks caller_;
};

}  // namespace keel::detail::inline KEEL_MODE
