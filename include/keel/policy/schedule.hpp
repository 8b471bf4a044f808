// schedule: the learning rate as a factor of each parameter group's own, by the number of updates that were applied.
//   constant                   the default; constant_with<warmup<D>> after a linear rise.
//   linear<..>                 rises, then falls in a line.
//   cosine<..>                 rises, then falls along half a cosine (Loshchilov & Hutter 2017). The usual one.
//   warmup_stable_decay<..>    rises, stays, falls in a line over the last decay<D> (Hu et al. 2024, "MiniCPM"); the run
//                              can be prolonged from its stable part.
// Options: warmup<D> or warmup_ratio<R> (L01), total<D> (else the trainer's options say it), decay<D>, min_ratio<R> or
// min_lr<L>. D is `100_steps`.
// Left out: schedules by epoch or by attempted step, which drift from the updates that really happened (N08).
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/slot.hpp>

namespace keel::schedule {

enum class kind : unsigned char { constant, linear, cosine, warmup_stable_decay, custom };

struct settings {
  schedule::kind kind = kind::constant;
  long long warmup = 0;       ///< updates
  double warmup_ratio = 0.0;  ///< of the total
  long long total = 0;        ///< updates; 0: the length of the run
  long long decay = 0;        ///< updates at the end; warmup_stable_decay only
  double min_ratio = 0.0;     ///< last learning rate over the highest
  double min_lr = 0.0;        ///< last learning rate, absolute; 0: min_ratio decides
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <steps Duration>
struct warmup {
  static constexpr void apply(settings& to) { to.warmup = Duration.count; }
};
template <double OfTotal>
struct warmup_ratio {
  static constexpr void apply(settings& to) { to.warmup_ratio = OfTotal; }
};
template <steps Duration>
struct total {
  static constexpr void apply(settings& to) { to.total = Duration.count; }
};
template <steps Duration>
struct decay {
  static constexpr void apply(settings& to) { to.decay = Duration.count; }
};
template <double Ratio>
struct min_ratio {
  static constexpr void apply(settings& to) { to.min_ratio = Ratio; }
};
template <double LearningRate>
struct min_lr {
  static constexpr void apply(settings& to) { to.min_lr = LearningRate; }
};

template <kind Kind, option... Options>
struct shape : fills<slot::schedule> {
  static constexpr settings start{.kind = Kind};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};

template <option... Options>
struct constant_with : shape<kind::constant, Options...> {};
using constant = constant_with<>;
template <option... Options>
struct linear : shape<kind::linear, Options...> {};
template <option... Options>
struct cosine : shape<kind::cosine, Options...> {};
template <option... Options>
struct warmup_stable_decay : shape<kind::warmup_stable_decay, Options...> {};

}  // namespace keel::schedule

namespace keel {
template <>
struct settings_of<slot::schedule> {
  using type = schedule::settings;
};
template <>
struct default_policy<slot::schedule> {
  using type = schedule::constant;
};
}  // namespace keel
