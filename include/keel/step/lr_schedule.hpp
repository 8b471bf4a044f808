// The learning rate by applied updates. The schedule is a factor on each parameter group's own rate; it can be saved, and it
// moves only when an update was applied.
#pragma once

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <keel/policy/schedule.hpp>
#include <keel/step/outcome.hpp>
#include <limits>
#include <numbers>
#include <vector>

namespace keel {

/// The factor, apart from what a plateau takes, for update number `update` (from 0) of `total`, in [min, 1]; `min` is the last
/// rate over the highest. Updates from `total` on keep the last factor. `total` 0 means a run without a known length; only
/// `constant` and `plateau` take it.
inline double schedule_factor(schedule::settings const& s, std::int64_t update, std::int64_t total, double min) {
  double const at = static_cast<double>(update);
  double const length = static_cast<double>(total);
  double const warmup = std::floor(schedule::warmup_of(s, total));
  auto const half_cosine = [](double progress) { return 0.5 * (1.0 - std::cos(std::numbers::pi * progress)); };
  if (at < warmup) {
    bool const cycle = s.kind == schedule::kind::one_cycle;
    return cycle ? s.start_ratio + (1.0 - s.start_ratio) * half_cosine(at / warmup) : (at + 1.0) / warmup;
  }
  if (!schedule::falls_to_its_end(s.kind)) return 1.0;
  double const decay = s.kind == schedule::kind::warmup_stable_decay ? static_cast<double>(s.decay) : length - warmup;
  double const progress = decay > 0.0 ? std::clamp((at - (length - decay)) / decay, 0.0, 1.0) : (at < length ? 0.0 : 1.0);
  bool const curved = s.kind == schedule::kind::cosine || s.kind == schedule::kind::one_cycle;
  if (curved) return 1.0 - (1.0 - min) * half_cosine(progress);
  return 1.0 - (1.0 - min) * progress;
}

/// A policy that brings its own factor: `static double factor(std::int64_t update, std::int64_t total)`.
template <class Policy>
concept custom_schedule = requires(std::int64_t update) {
  { Policy::factor(update, update) } -> std::convertible_to<double>;
};

class lr_schedule {
 public:
  /// Takes the groups' present rates as the highest, and leaves the optimizer as it is until apply. `factor` replaces the
  /// settings' own shape if it is set.
  lr_schedule(torch::optim::Optimizer& optimizer, schedule::settings const& settings, std::int64_t run_length,
              std::function<double(std::int64_t, std::int64_t)> factor = {})
      : settings_(settings), total_(settings.total > 0 ? settings.total : run_length), custom_(std::move(factor)) {
    for (auto& group : optimizer.param_groups()) highest_.push_back(group.options().get_lr());
  }

  /// Updates applied so far.
  std::int64_t position() const { return position_; }

  /// A group's own rate, which the schedule multiplies.
  double highest(std::size_t group) const { return highest_.at(group); }
  /// The learning rate of a group for the next update.
  double rate(std::size_t group = 0) const {
    double const highest = highest_.at(group) * lowered_;
    if (highest == 0.0) return 0.0;
    if (custom_) return highest * custom_(position_, total_);
    double const min = settings_.min_lr > 0.0 ? std::min(1.0, settings_.min_lr / highest) : settings_.min_ratio;
    double const factor = schedule_factor(settings_, position_, total_, min);
    return settings_.kind == schedule::kind::plateau ? highest * factor * std::max(min, plateau_.factor) : highest * factor;
  }

  /// Writes the present rates into the optimizer's groups.
  void apply(torch::optim::Optimizer& optimizer) const {
    auto& groups = optimizer.param_groups();
    for (std::size_t i = 0; i < groups.size() && i < highest_.size(); ++i) groups[i].options().set_lr(rate(i));
  }

  /// Every rate of every group is `factor` times what it was, from now on.
  void lower(double factor) { lowered_ *= factor; }

  /// Goes on by one if the step was applied; a plateau takes its loss in.
  void advance(outcome const& result) {
    auto const* const updated = result.get_if<outcome::updated>();
    if (updated == nullptr) return;
    ++position_;
    bool const warm = static_cast<double>(position_) > std::floor(schedule::warmup_of(settings_, total_));
    if (settings_.kind == schedule::kind::plateau && warm) plateau_.take(settings_, updated->loss);
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("position", position_);
    archive("highest_lr", highest_);
    archive("lowered", lowered_);
    if (settings_.kind == schedule::kind::plateau) archive("plateau", plateau_);
  }

 private:
  /// Compares the mean loss of one patience with the best one's.
  struct plateau_state {
    double factor = 1.0;
    double best = std::numeric_limits<double>::infinity();
    double sum = 0.0;
    std::int64_t count = 0;

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
    template <class Archive>
    void visit(Archive& archive) {
      archive("factor", factor);
      archive("best", best);
      archive("sum", sum);
      archive("count", count);
    }
  };

  schedule::settings settings_;
  std::int64_t total_;
  std::function<double(std::int64_t, std::int64_t)> custom_;
  std::vector<double> highest_;
  double lowered_ = 1.0;  ///< by rollbacks
  std::int64_t position_ = 0;
  plateau_state plateau_;
};

}  // namespace keel
