// given: stands in a policy for a number that the program gives when it builds a trainer or a step, so that it may come from a
// file or from the command line:
//
//     struct pretrain : keel::recipe<keel::clip::global_norm<keel::given>, keel::accumulate<keel::given>> {};
//     keel::trainer<pretrain> run{model, optimizer, {.clip = 1.0, .accumulate = 4}, options};
//
// The compiler checks which policies stand together, and all numbers that are constants; the constructor checks the numbers that
// are given, by the same rules and with the same sentences. Of an interval the unit stays a constant: every<given> counts updates, and
// every<epochs{given}> epochs. Left out: a recipe whose policies are known only at run time, because they are types.
#pragma once

#include <concepts>
#include <keel/policy/duration.hpp>

namespace keel {

/// The type of keel::given. It converts to whatever a policy takes: values that no recipe has, by which a number that is open is
/// recognised.
struct given_number {
  static constexpr long long whole = -0x6769'7665'6e00'0001;            ///< in the place of a signed count
  static constexpr unsigned long long natural = 0x6769'7665'6e00'0001;  ///< in the place of a seed
  static constexpr double real = -0x1.676976656e001p+1001;              ///< in the place of a real number

  /// A count that is open.
  constexpr operator long long() const { return whole; }
  /// A seed that is open.
  constexpr operator unsigned long long() const { return natural; }
  /// A number of updates that is open.
  constexpr operator steps() const { return {whole}; }
  /// A time that is open.
  constexpr operator seconds() const { return {whole}; }
  /// A number of epochs that is open.
  constexpr operator epochs() const { return {whole}; }
  /// A number of tokens that is open.
  constexpr operator tokens() const { return {whole}; }
  friend constexpr bool operator==(given_number, given_number) = default;
};
/// Stands in a policy for a number that the program gives: `keel::clip::global_norm<keel::given>`.
inline constexpr given_number given{};

/// True for a setting that waits for its number.
constexpr bool is_given(std::floating_point auto value) { return value == given_number::real; }
/// True for a count that waits for its number.
constexpr bool is_given(long long value) { return value == given_number::whole; }
/// True for a seed that waits for its number.
constexpr bool is_given(unsigned long long value) { return value == given_number::natural; }
/// No setting of this type can be open.
constexpr bool is_given(int) { return false; }

}  // namespace keel
