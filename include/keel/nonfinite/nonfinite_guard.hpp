// The mechanism of keel::nonfinite: counts consecutive skipped updates, and ends the run or requests a rollback.
#pragma once

#include <cstdint>
#include <keel/config/open_numbers.hpp>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/policy/nonfinite.hpp>
#include <optional>
#include <string>

namespace keel::inline KEEL_MODE {

class nonfinite_guard {
 public:
  template <policy_for<slot::nonfinite> Policy>
  explicit nonfinite_guard(Policy const&) : nonfinite_guard(detail::closed_settings<Policy>()) {}
  explicit nonfinite_guard(nonfinite::settings const& settings) : settings_(settings) {}

  void accepted() { consecutive_ = 0; }

  /// Counts a skipped update. Throws nonfinite_error (E08) if the policy tolerates no further skip. Returns the reason for a rollback if
  /// the policy requests one, else nullopt. `origin`: text on the value's origin, or empty. `update` counts from 1.
  std::optional<std::string> skipped(reason why, std::string const& where, std::int64_t update, std::string const& origin = {});

  template <class Archive>
  void visit(Archive& archive) {
    archive("in_a_row", consecutive_);
  }

 private:
  nonfinite::settings settings_;
  std::int64_t consecutive_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/nonfinite_guard.ipp>
#endif
