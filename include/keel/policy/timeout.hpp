// timeout: how long the phases of a run may take before keel intervenes.
//   none       the default: nothing is watched.
//   set<..>    soft<D> (a run without progress for this long reports it),
//              hard<D> (the process dumps the stacks of its threads and exits),
//              first_update<D> (replaces both before the first update, which includes setup and compilation),
//              collective<D> (a collective fails and names the missing ranks),
//              heartbeat<Interval, Limit> (how often each rank sends a heartbeat, and after how long without one the others exit),
//              grace<D> (from the scheduler's signal to its kill), force_exit<D> (from that signal to keel's own exit),
//              longest_update<D> and longest_save<D> (the longest waits before an emergency checkpoint). D is `30_s`, `10_min`.
// A trainer enforces them (timeout/run_watchdog.hpp) and compares its measured updates and saves with grace; H04 checks the declared ones.
// Left out: timeouts in updates, which stop counting when the updates stop.
#pragma once

#include <keel/policy/duration.hpp>
#include <keel/policy/slot.hpp>

namespace keel::slot {
struct timeout;
}

namespace keel::timeout {

/// All in seconds; 0: not set.
struct settings {
  long long soft = 0;                ///< time without progress after which the run reports it
  long long hard = 0;                ///< time without progress after which the process dumps its stacks and exits
  long long collective = 0;          ///< time after which a collective fails and names the missing ranks
  long long first_update = 0;        ///< replaces soft and hard before the first update
  long long heartbeat_interval = 0;  ///< time between two heartbeats of a rank
  long long heartbeat_limit = 0;     ///< time without a heartbeat of a rank after which the others exit
  long long grace = 0;               ///< from the scheduler's signal to its kill
  long long force_exit = 0;          ///< from that signal to keel's own exit
  long long longest_update = 0;      ///< longest update that an emergency checkpoint waits for
  long long longest_save = 0;        ///< longest save that an emergency checkpoint waits for
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

template <class Option>
concept option = option_of<Option, settings>;

template <seconds Duration>
struct soft : sets<&settings::soft, Duration.count> {};
template <seconds Duration>
struct hard : sets<&settings::hard, Duration.count> {};
template <seconds Duration>
struct collective : sets<&settings::collective, Duration.count> {};
template <seconds Duration>
struct first_update : sets<&settings::first_update, Duration.count> {};
/// Sets how often each of several ranks sends a heartbeat, and after how long without one the others exit.
template <seconds Interval, seconds Limit>
struct heartbeat {
  static constexpr void apply(settings& to) { to.heartbeat_interval = Interval.count, to.heartbeat_limit = Limit.count; }
};
template <seconds Duration>
struct grace : sets<&settings::grace, Duration.count> {};
template <seconds Duration>
struct force_exit : sets<&settings::force_exit, Duration.count> {};
template <seconds Duration>
struct longest_update : sets<&settings::longest_update, Duration.count> {};
template <seconds Duration>
struct longest_save : sets<&settings::longest_save, Duration.count> {};

template <option... Options>
struct set : configures<slot::timeout, settings{}, Options...> {};
using none = set<>;

}  // namespace keel::timeout

namespace keel {

struct slot::timeout : slot_description {
  using settings = keel::timeout::settings;
  using default_policy = keel::timeout::none;
  static constexpr char const* name = "timeout";
  static constexpr char const* given_twice = "D17";
  static constexpr bool is_single = true;
  static constexpr char const* keep_one = "list all in one keel::timeout::set<..>";
  static constexpr bool is_same_policy(settings const&, settings const&) { return true; }
  static constexpr policy_list<settings, 1> policies() { return {{{"set", {}, "*"}}}; }
  static constexpr void fields(auto& s, auto& field) {
    field.seconds("soft", s.soft);
    field.seconds("hard", s.hard);
    field.seconds("collective", s.collective);
    field.seconds("first_update", s.first_update);
    field.seconds("heartbeat_interval", s.heartbeat_interval);
    field.seconds("heartbeat_limit", s.heartbeat_limit);
    field.seconds("grace", s.grace);
    field.seconds("force_exit", s.force_exit);
    field.seconds("longest_update", s.longest_update);
    field.seconds("longest_save", s.longest_save);
  }
};

}  // namespace keel
