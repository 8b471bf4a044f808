// profile: which updates are traced.
//   off             the default.
//   every<D, ..>    in each `1000_steps` the first warmup<N> updates run under the profiler and are thrown away, the next
//                   active<N> are recorded.
// Left out: tracing of every update, which slows the run by more than what it shows.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct profile;
}

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
struct warmup : sets<&settings::warmup, Updates> {};
template <long long Updates>
struct active : sets<&settings::active, Updates> {};

struct off : fills<slot::profile> {
  static constexpr settings configured{};
};
template <steps Period, option... Options>
struct every : configures<slot::profile, settings{.kind = kind::every, .period = Period.count}, Options...> {};

}  // namespace keel::profile

namespace keel {

struct slot::profile : slot_description {
  using settings = keel::profile::settings;
  using default_policy = keel::profile::off;
  static constexpr char const* name = "profile";
  static constexpr char const* given_twice = "D16";
  static constexpr policy_list<settings, 2> policies() {
    return {{{"off", {}}, {"every", {.kind = keel::profile::kind::every}, "*", "period", true}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.updates("period", s.period);
    field.updates("warmup", s.warmup);
    field.updates("active", s.active);
  }
};

}  // namespace keel
