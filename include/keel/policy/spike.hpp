// spike: what happens when a finite loss or gradient norm is far outside its recent history.
//   ignore         the default.
//   skip<..>       skips the update; in_a_row<N> consecutive spikes are considered divergence and end the run.
//   rollback<..>   rolls back to a checkpoint older than the window and skips the data, at most attempts<N> times per run.
// When the policy ends the run, fit returns result::gave_up and a step throws diverged_error.
// A spike is a value more than zscore<Z> standard deviations above the mean of the window<N> of accepted values; the standard deviation is
// floored at 1 % of the mean. The following options add criteria: ratio<R>, a value of more than R times that mean ("the loss jumps by 2 to
// 10 times"); loss_above<T> and gradient_norm_above<T>, fixed limits that need no window and hold from the first update on. in_a_row<N>
// limits consecutive spikes. All ranks judge the global loss and norm (N18). Only accepted, finite values enter the window (N19). The
// window judges nothing until a quarter of it is filled, and never a decrease.
// Left out: a detector on a raw `x > threshold`, which a NaN passes (N03).
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
  double zscore = 6.0;               ///< standard deviations above the window's mean
  long long window = 128;            ///< number of accepted updates in the window
  long long limit = 10;              ///< number of consecutive spikes at which the run ends or rolls back
  long long attempts = 0;            ///< maximum number of rollbacks per run
  double ratio = 0.0;                ///< multiple of the window's mean; 0: none
  double loss_above = 0.0;           ///< fixed limit of the loss; 0: none
  double gradient_norm_above = 0.0;  ///< fixed limit of the gradient norm; 0: none
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
