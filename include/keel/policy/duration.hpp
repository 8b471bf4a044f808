// Counts and times as template arguments: `500_steps`, `1_epochs`, `10_min`. A step is one update of the parameters.
#pragma once

#include <type_traits>

namespace keel {

/// True for a value of one of these types.
template <class... Types, class Value>
constexpr bool is_one_of(Value) {
  return (std::is_same_v<Value, Types> || ...);
}

/// A number of parameter updates.
struct steps {
  long long count = 0;  ///< updates
  friend constexpr bool operator==(steps const&, steps const&) = default;
};

/// Wall-clock time in seconds.
struct seconds {
  long long count = 0;  ///< seconds
  friend constexpr bool operator==(seconds const&, seconds const&) = default;
};

/// Passes over the data.
struct epochs {
  long long count = 0;  ///< epochs
  friend constexpr bool operator==(epochs const&, epochs const&) = default;
};

/// Tokens consumed by training; rows if a batch has no tokens.
struct tokens {
  long long count = 0;  ///< tokens
  friend constexpr bool operator==(tokens const&, tokens const&) = default;
};

namespace literals {

/// `500_steps`: updates.
consteval steps operator""_steps(unsigned long long count) { return {static_cast<long long>(count)}; }
/// `2_epochs`
consteval epochs operator""_epochs(unsigned long long count) { return {static_cast<long long>(count)}; }
/// `10'000'000_tokens`
consteval tokens operator""_tokens(unsigned long long count) { return {static_cast<long long>(count)}; }
/// `30_s`: seconds.
consteval seconds operator""_s(unsigned long long count) { return {static_cast<long long>(count)}; }
/// `10_min`: minutes, in seconds.
consteval seconds operator""_min(unsigned long long count) { return {static_cast<long long>(count * 60)}; }
/// `2_h`: hours, in seconds.
consteval seconds operator""_h(unsigned long long count) { return {static_cast<long long>(count * 3600)}; }

}  // namespace literals
}  // namespace keel
