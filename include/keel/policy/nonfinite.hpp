// nonfinite: what happens when the loss or a gradient is NaN or infinite. In every case the parameters, the optimizer's
// state and the schedule stay as they were before the step, and the outcome says why.
//   raise            the default: the first one ends the run with nonfinite_error; raise_with<..> takes its option.
//   warn<N>          skips the update and says so on the console each time; N in a row end the run.
//   skip<N>          skips the update and only counts it; N in a row end the run.
//   rollback<N,..>   after N in a row rolls back to a checkpoint, changes something (N10), and goes on; a bounded number of
//                    times (N11).
// What ends the run is result::gave_up of fit, and nonfinite_error of a step; under raise nonfinite_error of both. Ranks take the
// same branch (N01, N02).
// Options of rollback: skip_data (default), lower_lr (half of it), reseed, change_nothing, attempts<N>. Option of all:
// exceptions, which takes an exception of LibTorch's in the loss function for the same thing where a value in it was not
// finite: binary_cross_entropy, normal and multinomial throw on a NaN. The forward pass then runs a second time, to see that.
// Left out: a skip without an end (N06), and clipping a NaN away, which writes it into every gradient (G08).
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct nonfinite;
}

namespace keel::nonfinite {

enum class kind : unsigned char { raise, warn, skip, rollback };
/// What lower_lr multiplies the learning rate by, once a rollback.
inline constexpr double lowered_by = 0.5;

/// What a rollback changes, so that the run does not come to the same update again.
enum class change : unsigned char { nothing, skip_data, lower_lr, reseed };

struct settings {
  nonfinite::kind kind = kind::raise;
  long long limit = 1;                         ///< the run ends or rolls back at this many non-finite updates in a row
  nonfinite::change change = change::nothing;  ///< what a rollback changes
  long long attempts = 0;                      ///< rollbacks in one run
  bool exceptions = false;                     ///< of LibTorch on a value that is not finite count as one
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
