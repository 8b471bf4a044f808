// Definitions for number_format.hpp.
#pragma once

#include <cmath>
#include <keel/metrics/number_format.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0.0) return "--:--";
  auto const whole = std::llround(seconds);
  if (whole >= 3600) return formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  return formatted("%02lld:%02lld", whole / 60, whole % 60);
}

KEEL_BODY std::string quantity(double value) {
  if (value >= 1e6) return formatted("%.2fM", value / 1e6);
  if (value >= 1e4) return formatted("%.1fk", value / 1e3);
  return formatted("%.0f", value);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
