// The mechanism of keel::spike: is this update's loss or gradient norm far above the recent ones, and when does a row of such
// updates end the run. Only the values of applied updates enter the history (N19), so a spike cannot widen its own limit.
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

  /// What the next update's loss may be at most; infinity while there is no history, or where the policy ignores spikes.
  double loss_limit() const { return limit(loss_, settings_.loss_above); }
  double gradient_norm_limit() const { return limit(gradient_norm_, settings_.gradient_norm_above); }

  /// Why the update should be skipped, if it should. What is not finite is not a spike, and another guard's business.
  std::optional<reason> judge(double loss, double gradient_norm) const;

  void accepted(step_outcome const& result);

  /// One more update is skipped. Throws diverged_error (E14) if the policy bears no more of them; where it rolls back,
  /// returns what happened instead. `update` counts from 1.
  std::optional<std::string> skipped(reason why, double value, std::int64_t update);

  template <class Archive>
  void visit(Archive& archive) {
    archive("loss", loss_);
    archive("gradient_norm", gradient_norm_);
    archive("in_a_row", consecutive_);
  }

 private:
  std::size_t length() const { return static_cast<std::size_t>(std::max(2LL, settings_.window)); }
  /// A deviation of two values says little.
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
