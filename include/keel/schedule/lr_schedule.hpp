// The learning rate as a function of applied updates. The schedule is a factor on each parameter group's own rate. It can be saved, and
// advances only when an update was applied.
//
// Ownership of the rates: without a schedule policy the program owns them and keel only reads them. set_lr(), torch::optim::StepLR and
// hooks take effect, and checkpoints store the current rates. Under a schedule policy the schedule owns them, and a rate that something
// else wrote is an error (E18), because one of the two would be lost. No update is applied with a negative, infinite or NaN rate.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <keel/config/open_numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/policy/schedule.hpp>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Returns the elapsed fraction, below 1, of the current warm-restart cycle before update number `update`, counted from 0 after the
/// warm-up.
double cycle_progress(schedule::settings const& s, std::int64_t update);

/// Returns how often a schedule that lowers the rate by a factor has done so before update number `update`; fractional if it lowers the
/// rate smoothly. `after_warmup` counts from the end of the warm-up.
double times_lowered(schedule::settings const& s, std::int64_t update, std::int64_t after_warmup);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns the factor, without that of a plateau, for update number `update` (from 0) of `total`, in [min, 1] after the warm-up. `min` is
/// the ratio of the lowest to the highest rate. `total` 0 means an unknown length; only schedules that fall to their end need the length.
/// They keep the last factor from `total` on.
double schedule_factor(schedule::settings const& s, std::int64_t update, std::int64_t total, double min);

/// A custom policy with its own factor: `static double factor(std::int64_t update, std::int64_t total)`.
template <class Policy>
concept custom_schedule = requires(std::int64_t update) {
  { Policy::factor(update, update) } -> std::convertible_to<double>;
};

/// Writes learning rates into an optimizer's groups, depending on the number of applied updates.
class lr_schedule {
 public:
  /// `run_length`: updates of the run, for a schedule that needs it; 0: unknown.
  template <policy_for<slot::schedule> Policy>
  lr_schedule(torch::optim::Optimizer& optimizer, Policy const& /*policy*/, std::int64_t run_length = 0)
      : lr_schedule(optimizer, detail::closed_settings<Policy>(), run_length, factor_of<Policy>()) {}
  /// Takes the groups' current rates as the highest. Does not change the optimizer, which must outlive this object, before apply().
  /// `factor` replaces the settings' own shape if it is set.
  lr_schedule(torch::optim::Optimizer& optimizer, schedule::settings const& settings, std::int64_t run_length,
              std::function<double(std::int64_t, std::int64_t)> factor = {});

  /// Returns the factor of a custom policy; empty for other policies.
  template <class Policy>
  static std::function<double(std::int64_t, std::int64_t)> factor_of() {
    if constexpr (custom_schedule<Policy>) {
      return [](std::int64_t update, std::int64_t total) { return Policy::factor(update, total); };
    } else {
      return {};
    }
  }

  /// Updates applied so far.
  std::int64_t position() const { return position_; }
  /// True if the recipe has a schedule, which writes the rates; otherwise the program does.
  bool writes() const { return custom_ || schedule::changes_the_rate(settings_); }

  /// Returns a group's own rate, which the schedule multiplies.
  double highest(std::size_t group) const { return writes() ? highest_.at(group) : present(group); }
  /// Returns the learning rate of a group for the next update.
  double rate(std::size_t group = 0) const;

  /// Throws learning_rate_error (E18), before anything has changed, if a rate of the next update is negative, infinite or NaN, or if
  /// something else wrote a rate under a schedule. `update` counts from 1.
  void require_sound(std::int64_t update);

  /// Sets the length of the run in updates. Call before the first update.
  void set_run_length(std::int64_t updates) {
    if (settings_.total == 0) total_ = updates;
  }

  /// Writes the next update's rates into the optimizer's groups; does nothing without a schedule.
  void apply(torch::optim::Optimizer& optimizer);
  /// Accepts the optimizer's loaded rates, which the schedule wrote before they were saved.
  void adopt_loaded_rates();

  /// Adds a parameter group, with this rate as its own.
  void add_group(double rate) {
    highest_.push_back(rate);
    written_.push_back(rate);
  }
  /// Removes the last group.
  void remove_last_group() {
    highest_.pop_back();
    written_.pop_back();
  }

  /// The factor that rollbacks applied to the rate so far, at most 1.
  double lowered() const { return lowered_; }

  /// Multiplies all rates of all groups by `factor` from now on.
  void lower(double factor);

  /// Advances by one if the update was applied; a plateau records its loss.
  void advance(step_outcome const& result);

  /// Reports an evaluation of the current parameters to a plateau that judges evaluations, which ignores it during the warm-up. NaN and
  /// infinity never count as better.
  void evaluated(double value, bool larger_is_better) {
    bool const warm = position_ >= schedule::warmup_updates(settings_, total_);
    if (schedule::judges_evaluations(settings_) && warm) plateau_.take_evaluation(settings_, value, larger_is_better);
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("position", position_);
    archive("highest_lr", highest_);
    archive("lowered", lowered_);
    if constexpr (requires { Archive::reads; }) loaded_ = true;
    if (settings_.kind == schedule::kind::plateau) archive("plateau", plateau_);
  }

 private:
  /// Takes the rates that are set before the first update as the base rates, which the schedule multiplies.
  void take_base_rates() {
    for (std::size_t i = 0; i < highest_.size(); ++i) written_[i] = highest_[i] = present(i);
  }

  /// Compares the mean loss of a patience interval, or an evaluation, with the best one.
  struct plateau_state {
    double factor = 1.0;
    double best = std::numeric_limits<double>::infinity();
    double sum = 0.0;
    std::int64_t count = 0;
    double best_evaluation = std::numeric_limits<double>::infinity();  ///< infinite before the first
    std::int64_t evaluations_without_better = 0;

    void take(schedule::settings const& s, double loss) {
      sum += loss;
      if (++count < s.patience) return;
      double const mean = sum / static_cast<double>(count);
      if (mean < best - s.threshold * std::abs(best) || std::isinf(best)) {
        best = mean;
      } else {
        factor *= s.lowered_by;
      }
      sum = 0.0;
      count = 0;
    }
    void take_evaluation(schedule::settings const& s, double value, bool larger_is_better) {
      double const by = s.threshold * std::abs(best_evaluation);
      bool const first = std::isinf(best_evaluation);
      bool const better = first || (larger_is_better ? value > best_evaluation + by : value < best_evaluation - by);
      if (std::isfinite(value) && better) {
        best_evaluation = value;
        evaluations_without_better = 0;
      } else if (++evaluations_without_better >= s.evaluations) {
        factor *= s.lowered_by;
        evaluations_without_better = 0;
      }
    }
    template <class Archive>
    void visit(Archive& archive) {
      archive("factor", factor);
      archive("best", best);
      archive("sum", sum);
      archive("count", count);
      // Archives that only inspect or copy state do not support optional fields.
      if constexpr (requires { archive.optional_field("best_evaluation", best_evaluation); }) {
        archive.optional_field("best_evaluation", best_evaluation);
        archive.optional_field("evaluations_without_better", evaluations_without_better);
      } else {
        archive("best_evaluation", best_evaluation);
        archive("evaluations_without_better", evaluations_without_better);
      }
    }
  };

  double present(std::size_t group) const { return optimizer_->param_groups().at(group).options().get_lr(); }
  static std::string text_of(double rate);

  torch::optim::Optimizer* optimizer_;
  schedule::settings settings_;
  std::int64_t total_;
  std::function<double(std::int64_t, std::int64_t)> custom_;
  std::vector<double> highest_;  ///< each group's rate at construction
  std::vector<double> written_;  ///< rates that apply() wrote into the optimizer
  bool loaded_ = false;          ///< the schedule was loaded, and the optimizer's rates are about to be
  bool applied_ = false;         ///< an update has begun with a rate of this schedule
  double lowered_ = 1.0;         ///< factor of all rollbacks
  std::int64_t position_ = 0;
  plateau_state plateau_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/schedule/lr_schedule.ipp>
#endif
