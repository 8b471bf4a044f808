// spike: what happens when a finite loss or gradient norm stands far outside its recent history.
//   ignore         the default.
//   skip<..>       skips that update; in_a_row<N> of them are not spikes but a run that diverges, and end it.
//   rollback<..>   rolls back to a checkpoint older than the window and skips the data, attempts<N> times in a run.
// What ends the run is result::gave_up of fit, and diverged_error of a step.
// What a spike is: a value more than zscore<Z> standard deviations above the mean of the window<N> of accepted ones, where a
// deviation counts as at least a hundredth of the mean; beside that, where they are given, more than ratio<R> times that mean
// ("the loss jumps by 2 to 10 times"), or a loss above loss_above<T> or a norm above gradient_norm_above<T>, which need no
// window and hold from the first update on. in_a_row<N> is the patience with them. Ranks judge the loss and
// the norm of all of them (N18). Only accepted, finite values enter the window (N19); it judges nothing before a quarter of it
// is there, and no fall.
// Left out: a detector on a raw `x > threshold`, which NaN passes (N03).
#pragma once

#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct spike;
}

namespace keel::spike {

enum class kind : unsigned char { ignore, skip, rollback };

struct settings {
  spike::kind kind = kind::ignore;
  double zscore = 6.0;               ///< standard deviations from the window's mean
  long long window = 128;            ///< accepted updates that the statistics look back on
  long long limit = 10;              ///< the run ends or rolls back at this many spikes in a row
  long long attempts = 0;            ///< rollbacks in one run
  double ratio = 0.0;                ///< times the window's mean; 0: none
  double loss_above = 0.0;           ///< a loss that is always a spike; 0: none
  double gradient_norm_above = 0.0;  ///< a gradient norm that is always a spike; 0: none
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <number Deviations>
struct zscore : sets<&settings::zscore, Deviations> {};
template <long long Updates>
struct window : sets<&settings::window, Updates> {};

template <number Times>
struct ratio : sets<&settings::ratio, Times> {};
template <number Loss>
struct loss_above : sets<&settings::loss_above, Loss> {};
template <number Norm>
struct gradient_norm_above : sets<&settings::gradient_norm_above, Norm> {};
template <long long Updates>
struct in_a_row : sets<&settings::limit, Updates> {};
template <long long Count>
struct attempts : sets<&settings::attempts, Count> {};

struct ignore : fills<slot::spike> {
  static constexpr settings configured{};
};
template <option... Options>
struct skip : configures<slot::spike, settings{.kind = kind::skip}, Options...> {};
inline constexpr settings rollback_start{.kind = kind::rollback, .limit = 1, .attempts = 3};
template <option... Options>
struct rollback : configures<slot::spike, rollback_start, Options...> {};

}  // namespace keel::spike

namespace keel {

struct slot::spike : slot_description {
  using settings = keel::spike::settings;
  using default_policy = keel::spike::ignore;
  static constexpr char const* name = "spike";
  static constexpr char const* given_twice = "D04";
  static constexpr policy_list<settings, 3> policies() {
    return {
        {{"ignore", {}},
         {"skip", {.kind = keel::spike::kind::skip}, " zscore window limit ratio loss_above gradient_norm_above ", "zscore"},
         {"rollback", keel::spike::rollback_start, "*", "zscore"}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.number("zscore", s.zscore);
    field.updates("window", s.window);
    field.number("limit", s.limit);
    field.number("attempts", s.attempts);
    field.number("ratio", s.ratio);
    field.number("loss_above", s.loss_above);
    field.number("gradient_norm_above", s.gradient_norm_above);
  }
};

}  // namespace keel
