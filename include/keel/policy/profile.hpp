// profile: which updates are profiled. Writes to `profiles` in the run directory: a trace for chrome://tracing or Perfetto, a summary and,
// if the process counts memory, a recording of it.
//   off               the default.
//   every<D, ..>      every `1000_steps` runs warmup<N> updates under the profiler and discards them, then records the next active<N>. Also
//                     records after a symptom.
//   on_symptom<..>    records only after a symptom: an alarm, a lasting slowdown, or running out of memory.
// Symptoms within 100 updates of each other make one profile. The newest 16 profiles are kept.
// Left out: tracing of every update, which would slow the run too much; kernels on a device, which the vendor's tools show. All times are
// host times.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct profile;
}

namespace keel::profile {

enum class kind : unsigned char { off, every, on_symptom };

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
template <option... Options>
struct on_symptom : configures<slot::profile, settings{.kind = kind::on_symptom}, Options...> {};

}  // namespace keel::profile

namespace keel {

struct slot::profile : slot_description {
  using settings = keel::profile::settings;
  using default_policy = keel::profile::off;
  static constexpr char const* name = "profile";
  static constexpr char const* given_twice = "D16";
  static constexpr policy_list<settings, 3> policies() {
    using keel::profile::kind;
    return {{{"off", {}},
             {"every", {.kind = kind::every}, "*", "period", true},
             {"on_symptom", {.kind = kind::on_symptom}, " warmup active "}}};
  }
  static constexpr void fields(auto& s, auto& field) {
    field.updates("period", s.period);
    field.updates("warmup", s.warmup);
    field.updates("active", s.active);
  }
};

}  // namespace keel
