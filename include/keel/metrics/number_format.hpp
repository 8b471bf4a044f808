// Formats numbers for people. Does not need LibTorch.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <keel/libtorch/mode.hpp>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

namespace keel::detail::inline KEEL_MODE {

/// Drops the sign of a NaN, which snprintf would print.
template <class Value>
Value without_sign_of_nan(Value value) {
  if constexpr (std::is_floating_point_v<Value>) {
    if (std::isnan(value)) return std::numeric_limits<Value>::quiet_NaN();
  }
  return value;
}

/// Formats like std::snprintf.
template <class... Values>
std::string formatted(char const* format, Values... values) {
  int const size = std::snprintf(nullptr, 0, format, without_sign_of_nan(values)...);
  std::string text(static_cast<std::size_t>(size > 0 ? size : 0), '\0');
  std::snprintf(text.data(), text.size() + 1, format, without_sign_of_nan(values)...);
  return text;
}

/// Formats a duration: `01:05`, `1:01:05`; `--:--` for a negative or non-finite number.
std::string duration(double seconds);

/// Formats a quantity: `950`, `12.3k`, `4.56M`.
std::string quantity(double value);

inline std::string zscore(std::optional<double> const& value) {
  return value ? formatted(" (z %+.1f)", *value) : std::string();
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/number_format.ipp>
#endif
