// nonfinite: what happens when the loss or a gradient is NaN or infinite. In every case the parameters, the optimizer's state and the
// schedule are unchanged by the update, and the outcome has the reason.
//   raise            the default: the first non-finite update ends the run with nonfinite_error; raise_with<..> takes the option.
//   warn<N>          skips the update and prints a warning each time; N consecutive ones end the run.
//   skip<N>          skips and counts the update; N consecutive ones end the run.
//   rollback<N,..>   after N consecutive ones rolls back to a checkpoint, applies a change (N10) and continues; at most attempts<N> times
//                    (N11).
// When the policy ends the run, fit returns result::gave_up and a step throws nonfinite_error; under raise both throw. All ranks take the
// same branch (N01, N02).
// Options of rollback: skip_data (the default), lower_lr (halves the learning rate), reseed, change_nothing, attempts<N>. Option of all:
// exceptions, which treats an exception of LibTorch in the loss function as a non-finite update if it was caused by a non-finite value:
// binary_cross_entropy, normal and multinomial throw on a NaN. To determine that, the forward pass runs a second time.
// Left out: an unlimited skip (N06), and clipping of a NaN, which spreads it to every gradient (G08).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct nonfinite;
}

namespace keel::nonfinite {

enum class kind : unsigned char { raise, warn, skip, rollback };
/// Factor that lower_lr applies to the learning rate at each rollback.
inline constexpr double lowered_by = 0.5;

/// The change that a rollback applies, so that the run does not repeat the same update.
enum class change : unsigned char { nothing, skip_data, lower_lr, reseed };

struct settings {
  nonfinite::kind kind = kind::raise;
  long long limit = 1;                         ///< number of consecutive non-finite updates at which the run ends or rolls back
  nonfinite::change change = change::nothing;  ///< the change that a rollback applies
  long long attempts = 0;                      ///< maximum number of rollbacks per run
  bool exceptions = false;  ///< an exception of LibTorch that a non-finite value caused counts as a non-finite update
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

struct skip_data : sets<&settings::change, change::skip_data> {};
struct lower_lr : sets<&settings::change, change::lower_lr> {};
struct reseed : sets<&settings::change, change::reseed> {};
struct change_nothing : sets<&settings::change, change::nothing> {};
template <long long Count>
struct attempts : sets<&settings::attempts, Count> {};
struct exceptions : sets<&settings::exceptions, true> {};

/// `raise` with options.
template <option... Options>
struct raise_with : configures<slot::nonfinite, settings{}, Options...> {};
using raise = raise_with<>;
template <long long InARow, option... Options>
struct warn : configures<slot::nonfinite, settings{.kind = kind::warn, .limit = InARow}, Options...> {};
template <long long InARow, option... Options>
struct skip : configures<slot::nonfinite, settings{.kind = kind::skip, .limit = InARow}, Options...> {};
constexpr settings rollback_start(long long in_a_row) {
  return {.kind = kind::rollback, .limit = in_a_row, .change = change::skip_data, .attempts = 3};
}
template <long long InARow, option... Options>
struct rollback : configures<slot::nonfinite, rollback_start(InARow), Options...> {};

}  // namespace keel::nonfinite

namespace keel {

struct slot::nonfinite : slot_description {
  using settings = keel::nonfinite::settings;
  using default_policy = keel::nonfinite::raise;
  static constexpr char const* name = "nonfinite";
  static constexpr char const* given_twice = "D03";
  static constexpr policy_list<settings, 4> policies() {
    return {{{.name = "raise", .start = {}, .fields = " exceptions ", .typed = "raise"},
             {"warn", {keel::nonfinite::kind::warn, 0}, " limit exceptions ", "limit", true},
             {"skip", {keel::nonfinite::kind::skip, 0}, " limit exceptions ", "limit", true},
             {"rollback", keel::nonfinite::rollback_start(0), "*", "limit", true}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("limit", s.limit);
    field.choice("change", s.change, {"nothing", "skip_data", "lower_lr", "reseed"});
    field.number("attempts", s.attempts);
    field.truth("exceptions", s.exceptions);
  }
};

}  // namespace keel
