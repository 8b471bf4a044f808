// evaluation: when the trainer evaluates by itself. trainer::evaluate is there without it.
//   none            the default.
//   every<D, ..>    each `500_steps`, on what trainer::evaluate_on was given.
// Options: batches<N> bounds one evaluation; early_stop<N> ends the run after N evaluations without a better loss.
// Left out: evaluation by wall-clock time, which ranks would not agree on.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/slot.hpp>

namespace keel::evaluation {

enum class kind : unsigned char { none, every };

struct settings {
  evaluation::kind kind = kind::none;
  long long interval = 0;    ///< updates
  long long batches = 0;     ///< in one evaluation; 0: all
  long long early_stop = 0;  ///< evaluations in a row without a better loss; 0: never
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <long long Count>
struct batches {
  static constexpr void apply(settings& to) { to.batches = Count; }
};
template <long long Evaluations>
struct early_stop {
  static constexpr void apply(settings& to) { to.early_stop = Evaluations; }
};

struct none : fills<slot::evaluation> {
  static constexpr settings configured{};
};
template <steps Interval, option... Options>
struct every : fills<slot::evaluation> {
  static constexpr settings start{.kind = kind::every, .interval = Interval.count};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};

}  // namespace keel::evaluation

namespace keel {
template <>
struct settings_of<slot::evaluation> {
  using type = evaluation::settings;
};
template <>
struct default_policy<slot::evaluation> {
  using type = evaluation::none;
};
}  // namespace keel
