// When a run saves: after so many updates, after so much time, or as often as failures and the cost of a save make it best.
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

/// Seconds between two saves that lose the least time, for a save that costs `cost` seconds and failures every `mean` seconds:
/// Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", equation 37; its first term is
/// Young's of 1974.
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
  /// `time` outlives this.
  explicit checkpoint_cadence(checkpoint::settings const& settings, time_source const& time = real_time())
      : settings_(settings), time_(time) {}

  /// The run begins, or a save began.
  void restart() { last_ = time_.now(); }
  /// A save began, and its cost is not known yet.
  void began() {
    restart();
    measuring_ = true;
  }

  /// A save, also one that failed, took training `stall` seconds and the disk `written`.
  void measured(double stall, double written) {
    measuring_ = false;
    // The mean of the recent ones: one slow write does not make a slow disk.
    stall_ = stall_ ? 0.75 * *stall_ + 0.25 * stall : stall;
    written_ = std::max(written, 0.75 * written_ + 0.25 * written);
  }
  /// Seconds between two saves of young_daly; nothing before a save was measured.
  std::optional<double> interval() const {
    if (!stall_) return std::nullopt;
    double const best = daly_interval(*stall_, static_cast<double>(settings_.mean_time_between_failures));
    // More often than they can be written, saves would only wait for each other.
    return std::max(best, written_);
  }

  /// After so many updates; `updated`: the last update brought one more. `units`: epochs or tokens, by the policy, and at the
  /// last save. Time passes anyhow.
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
