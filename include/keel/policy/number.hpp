// A real number as a template argument: global_norm<1> as well as global_norm<1.0>.
#pragma once

#include <concepts>
#include <keel/policy/given.hpp>

namespace keel {

/// A real number as a template argument, of a literal of any arithmetic type.
struct number {
  double value = 0.0;  ///< as a double

  /// `1.0`
  consteval number(std::floating_point auto from) : value(static_cast<double>(from)) {}
  /// `1`
  consteval number(std::integral auto from) : value(static_cast<double>(from)) {}
  /// A number that the program gives later.
  consteval number(given_number) : value(given_number::real) {}
  /// The number.
  constexpr operator double() const { return value; }
  friend constexpr bool operator==(number const&, number const&) = default;
};

}  // namespace keel
