// The mechanism of keel::spike: decides whether an update's loss or gradient norm is far above recent values, and when repeated spikes end
// the run. Only the values of applied updates enter the history (N19), so a spike cannot widen its own limit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <keel/config/open_numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/finite.hpp>
#include <keel/core/outcome.hpp>
#include <keel/core/window_statistics.hpp>
#include <keel/policy/spike.hpp>
#include <optional>
#include <string>

namespace keel::inline KEEL_MODE {

class spike_guard {
 public:
  template <policy_for<slot::spike> Policy>
  explicit spike_guard(Policy const&) : spike_guard(detail::closed_settings<Policy>()) {}
  explicit spike_guard(spike::settings const& settings)
      : settings_(settings), loss_(length(), least()), gradient_norm_(length(), least()) {}

  /// Returns the largest loss allowed for the next update; infinity if there is no history yet or the policy ignores spikes.
  double loss_limit() const { return limit(loss_, settings_.loss_above); }
  double gradient_norm_limit() const { return limit(gradient_norm_, settings_.gradient_norm_above); }

  /// Returns the reason to skip the update, or nullopt. Non-finite values are left to the non-finite guard.
  std::optional<reason> judge(double loss, double gradient_norm) const;

  void accepted(step_outcome const& result);

  /// Counts a skipped update. Throws diverged_error (E14) if the policy tolerates no further skip. Returns the reason for a rollback if the
  /// policy requests one, else nullopt. `update` counts from 1.
  std::optional<std::string> skipped(reason why, double value, std::int64_t update);

  template <class Archive>
  void visit(Archive& archive) {
    archive("loss", loss_);
    archive("gradient_norm", gradient_norm_);
    archive("in_a_row", consecutive_);
  }

 private:
  std::size_t length() const { return static_cast<std::size_t>(std::max(2LL, settings_.window)); }
  /// The standard deviation of only two values is unreliable.
  std::size_t least() const { return std::max<std::size_t>(2, length() / 4); }
  double limit(window_statistics const& history, double above) const;

  spike::settings settings_;
  window_statistics loss_;
  window_statistics gradient_norm_;
  std::int64_t consecutive_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/spike/spike_guard.ipp>
#endif
