// profile: which updates are traced.
//   off             the default.
//   every<D, ..>    in each `1000_steps` the first warmup<N> updates run under the profiler and are thrown away, the next
//                   active<N> are recorded.
// Left out: tracing of every update, which slows the run by more than what it shows.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/slot.hpp>

namespace keel::profile {

enum class kind : unsigned char { off, every };

struct settings {
  profile::kind kind = kind::off;
  long long period = 0;  ///< updates from one recording to the next
  long long warmup = 1;  ///< updates
  long long active = 3;  ///< updates
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <long long Updates>
struct warmup {
  static constexpr void apply(settings& to) { to.warmup = Updates; }
};
template <long long Updates>
struct active {
  static constexpr void apply(settings& to) { to.active = Updates; }
};

struct off : fills<slot::profile> {
  static constexpr settings configured{};
};
template <steps Period, option... Options>
struct every : fills<slot::profile> {
  static constexpr settings start{.kind = kind::every, .period = Period.count};
  static constexpr settings configured = with_options<settings, Options...>(start);
  static constexpr bool options_agree = keel::options_agree<settings, Options...>(start);
};

}  // namespace keel::profile

namespace keel {
template <>
struct settings_of<slot::profile> {
  using type = profile::settings;
};
template <>
struct default_policy<slot::profile> {
  using type = profile::off;
};
}  // namespace keel
