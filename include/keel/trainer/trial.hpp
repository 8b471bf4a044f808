// Two questions to ask before a long run, as calls on a trainer that leave it exactly as it was: parameters, buffers, optimizer
// state, registered state, random numbers, counters and files.
//     keel::lr_range_result range = run.lr_range_test(batches, loss_of);      which learning rates can this run bear?
//     keel::overfit_result fit = run.overfit_one_batch(batch, loss_of);       can it learn one batch by heart? If not, it is
//     broken
// Both train with the trainer's own step, clipping, precision and loss scale, at rates of their own and with the optimizer's
// state as of a new run. An optimizer that keeps state outside of state() must put it back itself; keel's do.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <keel/core/buffers.hpp>
#include <keel/core/error.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/rule/refuse_call.hpp>
#include <keel/rule/unbuilt.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/step.hpp>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel {

struct lr_range_options {
  double lowest = 1e-7;  ///< learning rate of the first parameter group; the others keep their ratio to it
  double highest = 1.0;
  std::int64_t updates = 100;  ///< from the one to the other, each rate a fixed factor above the one before
  double smoothing = 0.9;      ///< of the losses' moving average, in [0, 1)
  double stop_at = 4.0;        ///< the test ends where the smoothed loss is so many times its lowest
};

/// Smith 2017, "Cyclical Learning Rates for Training Neural Networks".
struct lr_range_result {
  struct point {
    double learning_rate;
    double loss;
    double smoothed_loss;
  };
  std::vector<point> points;
  bool diverged = false;  ///< it ended before the highest rate
  double steepest = 0.0;  ///< rate at which the smoothed loss fell fastest per decade; 0 if it never fell
  double lowest = 0.0;    ///< rate of the lowest smoothed loss; a tenth of it is a cautious choice
};

struct overfit_result {
  std::vector<double> losses;  ///< one an update
  /// The last loss is below this share of the first.
  bool learned(double share = 0.1) const { return !losses.empty() && losses.back() < share * losses.front(); }
};

namespace detail {

/// Takes a model's and an optimizer's state aside and puts it back.
class state_aside {
 public:
  state_aside(torch::nn::Module& model, torch::optim::Optimizer& optimizer, parameter_list const& parameters,
              program_state& program)
      : optimizer_(optimizer),
        parameters_(parameters),
        program_(program),
        registered_(program.take()),
        buffers_(model),
        random_(random_snapshot::take(parameters.device)) {
    at::NoGradGuard no_grad;
    buffers_.take();
    for (at::Tensor const& one : model.parameters()) live_.push_back(one.detach());
    for (at::Tensor const& one : live_) copies_.push_back(one.clone());
    for (at::Tensor const& one : parameters.tensors) gradients_.push_back(one.grad());
    for (auto& group : optimizer.param_groups()) rates_.push_back(group.options().get_lr());
    if (auto* const engine = dynamic_cast<update_engine*>(&optimizer)) engine_ = engine->take_aside();
    // Moved, not copied: what trains meanwhile makes its own.
    state_ = std::move(optimizer.state());
    optimizer.state() = {};
  }
  state_aside(state_aside const&) = delete;
  state_aside& operator=(state_aside const&) = delete;
  ~state_aside() {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < live_.size(); ++i) live_[i].copy_(copies_[i]);
    buffers_.restore();
    program_.put_back(registered_);
    for (std::size_t i = 0; i < gradients_.size(); ++i) parameters_.tensors[i].mutable_grad() = gradients_[i];
    optimizer_.state() = std::move(state_);
    if (engine_) engine_();
    for (std::size_t i = 0; i < rates_.size(); ++i) optimizer_.param_groups()[i].options().set_lr(rates_[i]);
    random_.restore();
  }

 private:
  torch::optim::Optimizer& optimizer_;
  parameter_list const& parameters_;
  program_state& program_;
  std::vector<field_copies> registered_;
  buffer_snapshot buffers_;
  random_snapshot random_;
  std::vector<at::Tensor> live_;
  std::vector<at::Tensor> copies_;
  std::vector<at::Tensor> gradients_;  ///< themselves: a window lets go of them and does not change them
  std::vector<double> rates_;
  std::remove_cvref_t<decltype(std::declval<torch::optim::Optimizer&>().state())> state_;
  std::function<void()> engine_;
};

/// Updates until `take(updated)` says enough, or an update is left out: what the recipe skips or ends a run for ends a trial.
/// Only an overflow of the loss scale, the scaler's ordinary signal, does not. Throws out_of_memory_error (E09) where a ladder
/// gives up.
template <class Step, class Batches, class LossOf, class Take>
void run_trial(Step& step, Batches& batches, LossOf& loss_of, Take&& take) {
  auto const goes_on = [&](outcome const& one) {
    if (one.is<outcome::accumulated>()) return true;
    if (auto const* const updated = one.get_if<outcome::updated>()) return take(*updated);
    if (auto const* const ended = one.get_if<outcome::gave_up>()) {
      throw out_of_memory_error("E09", "memory ran out in a trial: " + ended->detail + ". Make the batch smaller.");
    }
    auto const* const skipped = one.get_if<outcome::skipped>();
    return skipped != nullptr && skipped->why == reason::scale_overflow;
  };
  try {
    for (std::int64_t epoch = 0;; ++epoch) {
      bool any = false;
      bool const enough = with_epoch(batches, epoch, [&](auto at, auto const& end) {
        for (; at != end; ++at) {
          any = true;
          outcome const launched = step(*at, std::ref(loss_of));
          if (!goes_on(step.settle().value_or(launched))) return true;
        }
        return false;
      });
      if (enough) return;
      if (!any) {
        throw data_error("E06", "there is nothing to try: the batches are empty. Give the call at least one batch.");
      }
    }
  } catch (nonfinite_error const&) {
    // The recipe would end the run here, which is the answer to the question.
  } catch (diverged_error const&) {
  }
}

/// Gathers the points of a range test and says when to end it.
class range_points {
 public:
  range_points(lr_range_options const& options, lr_range_result& result) : options_(options), result_(result) {}

  bool operator()(outcome::updated const& updated) {
    average_ = options_.smoothing * average_ + (1.0 - options_.smoothing) * updated.loss;
    auto const count = static_cast<double>(result_.points.size() + 1);
    double const smoothed = average_ / (1.0 - std::pow(options_.smoothing, count));
    result_.points.push_back({updated.learning_rate, updated.loss, smoothed});
    if (smoothed < lowest_) {
      lowest_ = smoothed;
      result_.lowest = updated.learning_rate;
    }
    // The first few say more about the batches than about the rate.
    bool const settled = count > 1.0 / (1.0 - options_.smoothing);
    bool const far_off = settled && smoothed > lowest_ + (options_.stop_at - 1.0) * std::abs(lowest_);
    return !far_off && static_cast<std::int64_t>(result_.points.size()) < options_.updates;
  }

 private:
  lr_range_options const& options_;
  lr_range_result& result_;
  double average_ = 0.0;
  double lowest_ = std::numeric_limits<double>::infinity();
};

/// 0 where the smoothed loss never fell.
inline double steepest_rate(std::vector<lr_range_result::point> const& points) {
  double steepest = 0.0;
  double rate = 0.0;
  for (std::size_t i = 1; i + 1 < points.size(); ++i) {
    auto const& before = points[i - 1];
    auto const& after = points[i + 1];
    double const slope = (after.smoothed_loss - before.smoothed_loss) / std::log(after.learning_rate / before.learning_rate);
    if (slope >= steepest) continue;
    steepest = slope;
    rate = points[i].learning_rate;
  }
  return rate;
}

}  // namespace detail

/// The calls on a trainer, which lets them look at its step and options.
template <class Trainer, class Step, bool Strict>
class trials {
 public:
  /// Updates at rates from low to high and says how the loss took them. `batches` as for fit, and read as often as it takes;
  /// a single-pass range is refused (U32). Throws error (E12) for options without sense, or inside a window.
  template <class Batches, class LossOf>
  lr_range_result lr_range_test(Batches&& batches, LossOf&& loss_of, lr_range_options const& options = {}) {
    lr_range_result result;
    if constexpr (!detail::is_repeatable<std::remove_reference_t<Batches>>) {
      detail::refuse_call<rule::U32, Batches>();
    } else {
      require_sound(options);
      try_out([&](Step& step) {
        double const own = step.schedule().highest(0);
        if (!(own > 0.0)) {
          throw error("E12", "the first parameter group has no learning rate to start from. Give it one above 0.");
        }
        double const start = options.lowest / own;
        double const growth = std::log(options.highest / options.lowest) / static_cast<double>(options.updates - 1);
        step.schedule() = lr_schedule(
            step.optimizer(), schedule::constant::configured, options.updates,
            [=](std::int64_t update, std::int64_t) { return start * std::exp(growth * static_cast<double>(update)); });
        detail::range_points points(options, result);
        detail::run_trial(step, batches, loss_of, points);
      });
      result.diverged = static_cast<std::int64_t>(result.points.size()) < options.updates;
      result.steepest = detail::steepest_rate(result.points);
    }
    return result;
  }

  /// Updates on one batch at the groups' own learning rates. Throws error (E12) for less than one update, or inside a window.
  template <class Batch, class LossOf>
  overfit_result overfit_one_batch(Batch const& batch, LossOf&& loss_of, std::int64_t updates = 200) {
    if (updates < 1) throw error("E12", "overfitting one batch takes at least 1 update. Leave the number out for 200.");
    overfit_result result;
    try_out([&](Step& step) {
      step.schedule() = lr_schedule(step.optimizer(), schedule::constant::configured, updates);
      std::vector<Batch> const again{batch};
      detail::run_trial(step, again, loss_of, [&](outcome::updated const& updated) {
        result.losses.push_back(updated.loss);
        return static_cast<std::int64_t>(result.losses.size()) < updates;
      });
    });
    return result;
  }

 protected:
  trials() = default;

 private:
  /// Calls `trial` with a step like the trainer's own and puts everything back afterwards.
  template <class Trial>
  void try_out(Trial const& trial) {
    auto& trainer = static_cast<Trainer&>(*this);
    trainer.step_.settle();
    if (!trainer.step_.at_boundary()) {
      throw error("E12", "a window is open. Try things out between updates, before fit or after it.");
    }
    deterministic_scope const deterministic(Strict);
    auto& own = trainer.step_;
    detail::state_aside const aside(own.model(), own.optimizer(), own.parameters(), trainer.registered());
    // A schedule has written its present rates there.
    auto& groups = own.optimizer().param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(own.schedule().highest(i));
    Step like_it(own.model(), own.optimizer(), trainer.length());
    like_it.ladder().begin_like(own.ladder());
    like_it.restore_on_skip(trainer.registered());
    trial(like_it);
  }

  static void require_sound(lr_range_options const& options) {
    bool const rates = options.lowest > 0.0 && options.highest > options.lowest && std::isfinite(options.highest);
    bool const smooth = options.smoothing >= 0.0 && options.smoothing < 1.0 && options.stop_at > 1.0;
    if (rates && smooth && options.updates >= 2) return;
    throw error("E12",
                "an lr range test goes from a lowest rate above 0 to a higher one in at least 2 updates, with smoothing in "
                "[0, 1) and stop_at above 1. Look at keel::lr_range_options.");
  }
};

}  // namespace keel
