// Decides when a run saves: by number of updates, by time, or at the interval that is optimal for the cost of a save and the
// failure rate.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <keel/config/open_numbers.hpp>
#include <keel/core/time_source.hpp>
#include <keel/libtorch/mode.hpp>
#include <keel/policy/checkpoint.hpp>
#include <optional>

namespace keel::inline KEEL_MODE {

/// Optimal number of seconds between saves, for a save that costs `cost` seconds and failures every `mean` seconds on average.
/// Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", equation 37; its first term is
/// Young's formula of 1974.
inline double daly_interval(double cost, double mean) {
  if (cost >= 2.0 * mean) return mean;
  double const share = cost / (2.0 * mean);
  return std::sqrt(2.0 * cost * mean) * (1.0 + std::sqrt(share) / 3.0 + share / 9.0) - cost;
}

class checkpoint_cadence {
 public:
  template <policy_for<slot::checkpoint> Policy>
  explicit checkpoint_cadence(Policy const&, time_source const& time = real_time())
      : checkpoint_cadence(detail::closed_settings<Policy>(), time) {}
  /// `time` must outlive this.
  explicit checkpoint_cadence(checkpoint::settings const& settings, time_source const& time = real_time())
      : settings_(settings), time_(time) {}

  /// Restarts the interval; call when the run begins or a save begins.
  void restart() { last_ = time_.now(); }
  /// Call when a save begins whose cost is still unknown.
  void began() {
    restart();
    measuring_ = true;
  }

  /// Records the cost of a save, even a failed one: it blocked training for `stall` seconds and took `written` seconds to reach
  /// the disk.
  void measured(double stall, double written) {
    measuring_ = false;
    // A moving average, so that a single slow write has limited influence.
    stall_ = stall_ ? 0.75 * *stall_ + 0.25 * stall : stall;
    written_ = std::max(written, 0.75 * written_ + 0.25 * written);
  }
  /// Seconds between two saves under young_daly; nullopt before the first save was measured.
  std::optional<double> interval() const {
    if (!stall_) return std::nullopt;
    double const best = daly_interval(*stall_, static_cast<double>(settings_.mean_time_between_failures));
    // If saves were due faster than they can be written, they would only wait for each other.
    return std::max(best, written_);
  }

  /// True if a save is due after `updates` updates. `updated`: the last update was applied. `units`, `saved_units`: epochs or
  /// tokens, depending on the policy, now and at the last save. Cadences by time ignore the counts.
  bool is_due(std::int64_t updates, bool updated, std::int64_t units = 0, std::int64_t saved_units = 0) const {
    switch (settings_.kind) {
      case checkpoint::kind::every_epochs:
      case checkpoint::kind::every_tokens:
        return units / settings_.interval > saved_units / settings_.interval;
      case checkpoint::kind::every_steps:
        return updated && updates % settings_.interval == 0;
      case checkpoint::kind::every_seconds:
        return time_.now() - last_ >= std::chrono::seconds(settings_.interval);
      case checkpoint::kind::young_daly: {
        auto const seconds = interval();
        return seconds ? std::chrono::duration<double>(time_.now() - last_).count() >= *seconds : updated && !measuring_;
      }
      default:
        return false;
    }
  }

 private:
  checkpoint::settings settings_;
  time_source const& time_;
  time_source::time_point last_{};
  std::optional<double> stall_;
  double written_ = 0.0;
  bool measuring_ = false;
};

}  // namespace keel::inline KEEL_MODE
