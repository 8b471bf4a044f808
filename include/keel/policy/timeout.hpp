// timeout: how long the parts of a run may take before somebody acts.
//   none       the default: nothing is watched.
//   set<..>    soft<D> (a slow rank is reported), hard<D> (the run is restarted), collective<D> (a collective gives up; the
//              barrier of a restart), first_update<D> (how long the first update may take: set-up, compilation),
//              heartbeat<Interval, Limit> (how often a rank says that it lives, and when its silence counts),
//              grace<D> (from the scheduler's signal to its kill), force_exit<D> (from that signal to keel's own exit),
//              longest_update<D> and longest_save<D> (what an emergency checkpoint has to wait for). D is `30_s`, `10_min`.
// In this version a trainer measures its updates and saves against grace, and H04 the declared ones; the others are judged, and
// refused by it (U26).
// Left out: timeouts in updates, which stop counting when the updates stop.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/slot.hpp>

namespace keel::timeout {

/// All in seconds; 0: not set.
struct settings {
  long long soft = 0;
  long long hard = 0;
  long long collective = 0;
  long long first_update = 0;
  long long heartbeat_interval = 0;
  long long heartbeat_limit = 0;
  long long grace = 0;
  long long force_exit = 0;
  long long longest_update = 0;
  long long longest_save = 0;
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <seconds Duration>
struct soft {
  static constexpr void apply(settings& to) { to.soft = Duration.count; }
};
template <seconds Duration>
struct hard {
  static constexpr void apply(settings& to) { to.hard = Duration.count; }
};
template <seconds Duration>
struct collective {
  static constexpr void apply(settings& to) { to.collective = Duration.count; }
};
template <seconds Duration>
struct first_update {
  static constexpr void apply(settings& to) { to.first_update = Duration.count; }
};
template <seconds Interval, seconds Limit>
struct heartbeat {
  static constexpr void apply(settings& to) { to.heartbeat_interval = Interval.count, to.heartbeat_limit = Limit.count; }
};
template <seconds Duration>
struct grace {
  static constexpr void apply(settings& to) { to.grace = Duration.count; }
};
template <seconds Duration>
struct force_exit {
  static constexpr void apply(settings& to) { to.force_exit = Duration.count; }
};
template <seconds Duration>
struct longest_update {
  static constexpr void apply(settings& to) { to.longest_update = Duration.count; }
};
template <seconds Duration>
struct longest_save {
  static constexpr void apply(settings& to) { to.longest_save = Duration.count; }
};

template <option... Options>
struct set : fills<slot::timeout> {
  static constexpr settings configured = with_options<settings, Options...>({});
  static constexpr bool options_agree = keel::options_agree<settings, Options...>({});
};
using none = set<>;

}  // namespace keel::timeout

namespace keel {
template <>
struct settings_of<slot::timeout> {
  using type = timeout::settings;
};
template <>
struct default_policy<slot::timeout> {
  using type = timeout::none;
};
}  // namespace keel
