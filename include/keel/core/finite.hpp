// finite<T>: a floating-point number that was checked for NaN and infinity. `nan > threshold` is false, so comparisons with a
// threshold accept only a finite<T> (N03). Call as_finite to convert a raw number and to handle the failure.
#pragma once

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error \
    "keel: -ffast-math and -ffinite-math-only let the compiler remove every check for NaN and infinity. Fix: compile without them, or add -fno-finite-math-only."
#endif

#include <cmath>
#include <compare>
#include <concepts>
#include <keel/libtorch/mode.hpp>
#include <keel/rule/reject_call.hpp>
#include <optional>
#include <type_traits>

namespace keel::inline KEEL_MODE {

template <std::floating_point Number>
class finite;

/// Returns the number if it is finite, and nullopt otherwise.
template <std::floating_point Number>
std::optional<finite<Number>> as_finite(Number number) {
  if (!std::isfinite(number)) return std::nullopt;
  return finite<Number>(finite<Number>::looked_at, number);
}

/// A number that is neither NaN nor infinite. Created by keel::as_finite.
template <std::floating_point Number>
class finite {
 public:
  /// Does not compile (N03): a raw number may be NaN.
  template <class Raw>
    requires std::is_arithmetic_v<Raw>
  finite(Raw const&) : value_() {
    detail::reject_call<rule::N03, Raw>();
  }

  /// Returns the number.
  Number value() const { return value_; }
  friend auto operator<=>(finite const&, finite const&) = default;

 private:
  enum key { looked_at };
  finite(key, Number number) : value_(number) {}
  template <std::floating_point Any>
  friend std::optional<finite<Any>> as_finite(Any number);
  Number value_;
};

/// Returns true if the number is above the threshold. The threshold itself is not checked.
template <std::floating_point Number>
bool exceeds(finite<Number> const& number, std::type_identity_t<Number> threshold) {
  return number.value() > threshold;
}
/// Does not compile (N03): a raw or optional number must be checked with as_finite first.
template <class Raw>
  requires std::is_arithmetic_v<Raw> || requires(Raw const& raw) { raw.has_value(); }
bool exceeds(Raw const&, double) {
  detail::reject_call<rule::N03, Raw>();
  return false;
}

}  // namespace keel::inline KEEL_MODE
