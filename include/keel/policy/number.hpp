// A real number as a template argument: global_norm<1> as well as global_norm<1.0>.
#pragma once

#include <concepts>
#include <keel/policy/given.hpp>

namespace keel {

/// A real number as a template argument, from a literal of any arithmetic type.
struct number {
  double value = 0.0;  ///< the value

  /// `1.0`
  consteval number(std::floating_point auto from) : value(static_cast<double>(from)) {}
  /// `1`
  consteval number(std::integral auto from) : value(static_cast<double>(from)) {}
  /// Takes a number that the program supplies later.
  consteval number(given_number) : value(given_number::real) {}
  /// Returns the number.
  constexpr operator double() const { return value; }
  friend constexpr bool operator==(number const&, number const&) = default;
};

}  // namespace keel
