// spike: what happens when a finite loss or gradient norm stands far outside its recent history.
//   ignore         the default.
//   skip<..>       leaves that update out; in_a_row<N> of them are no spike but a run that diverges, and end it.
//   rollback<..>   goes back to a checkpoint older than the window and skips the data, attempts<N> times in a run.
// What a spike is: a value more than zscore<Z> standard deviations above the mean of the window<N> of accepted ones, where a
// deviation counts as at least a hundredth of the mean; beside that, where they are given, more than ratio<R> times that mean
// ("the loss jumps by 2 to 10 times"), or a loss above loss_above<T> or a norm above gradient_norm_above<T>, which need no
// window and hold from the first update on. in_a_row<N> is the patience with them. rank_local leaves the decision to each rank
// (N18). Only accepted, finite values enter the window (N19); it judges nothing before a quarter of it is there, and no fall.
// Left out: a detector on a raw `x > threshold`, which NaN passes (N03).
#pragma once

#include <keel/policy/number.hpp>
#include <keel/policy/slot.hpp>

namespace keel::spike {

enum class kind : unsigned char { ignore, skip, rollback };

struct settings {
  spike::kind kind = kind::ignore;
  double zscore = 6.0;               ///< standard deviations from the window's mean
  long long window = 128;            ///< accepted updates that the statistics look back on
  long long limit = 10;              ///< the run ends or rolls back at this many spikes in a row
  bool agreed = true;                ///< all ranks judge the same reduced value
  long long attempts = 0;            ///< rollbacks in one run
  double ratio = 0.0;                ///< times the window's mean; 0: none
  double loss_above = 0.0;           ///< a loss that is always a spike; 0: none
  double gradient_norm_above = 0.0;  ///< a gradient norm that is always a spike; 0: none
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <number Deviations>
struct zscore {
  static constexpr void apply(settings& to) { to.zscore = Deviations; }
};
template <long long Updates>
struct window {
  static constexpr void apply(settings& to) { to.window = Updates; }
};

template <number Times>
struct ratio {
  static constexpr void apply(settings& to) { to.ratio = Times; }
};
template <number Loss>
struct loss_above {
  static constexpr void apply(settings& to) { to.loss_above = Loss; }
};
template <number Norm>
struct gradient_norm_above {
  static constexpr void apply(settings& to) { to.gradient_norm_above = Norm; }
};
template <long long Updates>
struct in_a_row {
  static constexpr void apply(settings& to) { to.limit = Updates; }
};
template <long long Count>
struct attempts {
  static constexpr void apply(settings& to) { to.attempts = Count; }
};
struct rank_local {
  static constexpr void apply(settings& to) { to.agreed = false; }
};

struct ignore : fills<slot::spike> {
  static constexpr settings configured{};
};
template <option... Options>
struct skip : fills<slot::spike> {
  static constexpr settings start{.kind = kind::skip};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};
template <option... Options>
struct rollback : fills<slot::spike> {
  static constexpr settings start{.kind = kind::rollback, .limit = 1, .attempts = 3};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};

}  // namespace keel::spike

namespace keel {
template <>
struct settings_of<slot::spike> {
  using type = spike::settings;
};
template <>
struct default_policy<slot::spike> {
  using type = spike::ignore;
};
}  // namespace keel
