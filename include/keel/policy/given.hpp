// given: a placeholder in a policy for a number that the program supplies when it constructs a trainer or a step, for example from a file
// or the command line:
//
//     struct pretrain : keel::recipe<keel::clip::global_norm<keel::given>, keel::accumulate<keel::given>> {};
//     keel::trainer<pretrain> run{model, optimizer, {.clip = 1.0, .accumulate = 4}, options};
//
// The compiler checks the combination of policies and all constant numbers. The constructor checks the supplied numbers by the same rules
// and with the same messages. The unit of an interval remains constant: every<given> counts updates, and every<epochs{given}> epochs.
// Left out: a recipe whose policies are known only at run time, because policies are types.
#pragma once

#include <concepts>
#include <keel/policy/duration.hpp>

namespace keel {

/// The type of keel::given. Converts to whatever a policy takes. The results are sentinel values that no recipe uses, which mark a number
/// as open.
struct given_number {
  static constexpr long long whole = -0x6769'7665'6e00'0001;            ///< sentinel for a signed count
  static constexpr unsigned long long natural = 0x6769'7665'6e00'0001;  ///< sentinel for a seed
  static constexpr double real = -0x1.676976656e001p+1001;              ///< sentinel for a real number

  /// An open count.
  constexpr operator long long() const { return whole; }
  /// An open seed.
  constexpr operator unsigned long long() const { return natural; }
  /// An open number of updates.
  constexpr operator steps() const { return {whole}; }
  /// An open time.
  constexpr operator seconds() const { return {whole}; }
  /// An open number of epochs.
  constexpr operator epochs() const { return {whole}; }
  /// An open number of tokens.
  constexpr operator tokens() const { return {whole}; }
  friend constexpr bool operator==(given_number, given_number) = default;
};
/// Placeholder in a policy for a number that the program supplies: `keel::clip::global_norm<keel::given>`.
inline constexpr given_number given{};

/// True for a setting whose number is still to be supplied.
constexpr bool is_given(std::floating_point auto value) { return value == given_number::real; }
/// True for a count whose number is still to be supplied.
constexpr bool is_given(long long value) { return value == given_number::whole; }
/// True for a seed whose number is still to be supplied.
constexpr bool is_given(unsigned long long value) { return value == given_number::natural; }
/// False: no setting of this type can be open.
constexpr bool is_given(int) { return false; }

}  // namespace keel
