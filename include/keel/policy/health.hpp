// health: which alarms watch the run's metrics. An alarm has a symptom, its likely causes, and the fixes to try, least invasive first.
//   off            the default.
//   sft            supervised training and fine-tuning: loss, gradient norms, learning rate, evaluations, waiting for data; the list is in
//                  policy/alarms_of_sft.hpp.
//   grpo, ebft     rewards, entropy and divergence from the reference, for the objectives of the same names.
//   watch<E..>     the given entries: an alarm of keel or of the program, a set such as sft, or either of them with an action:
//                      watch<sft, then<loss_diverges, stop>, my_alarm>
//                  A later entry replaces an earlier one for the same alarm.
// policy/alarms_of_cost.hpp has two more, for updates that become slower and for growing memory.
// Actions: log (part of every action), checkpoint (requests one at the next update boundary), incident (writes a file of the values that
// raised the alarm into the run directory), stop (ends the run at the next update boundary and saves its checkpoint). A user-defined alarm
// is a struct:
//     struct too_confident {
//       static constexpr keel::health::alarm configured{
//           .name = "too_confident",
//           .conditions = {{"entropy", keel::health::is::below, 0.01, 20}},
//           .symptom = "the entropy of the predictions is below 0.01",
//           .causes = {"the inputs contain the labels", keel::trouble::collapse},
//           .fixes = {"look at a batch"}};   // without it, the fixes of its causes (policy/trouble.hpp)
//     };
// Left out: alarms on single values, which cause too many false alarms; thresholds in seconds, which depend on the machine.
#pragma once

#include <keel/policy/alarm.hpp>
#include <keel/policy/alarms_of_cost.hpp>
#include <keel/policy/alarms_of_sft.hpp>
#include <keel/policy/slot.hpp>
#include <type_traits>

namespace keel::slot {
struct health;
}

namespace keel::health {

enum class kind : unsigned char { off, sft, grpo, ebft, watch };

struct settings {
  health::kind kind = kind::off;
  int alarms = 0;  ///< number of alarms of watch<..>
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct off : fills<slot::health> {
  static constexpr settings configured{};
};
struct sft : fills<slot::health> {
  static constexpr settings configured{kind::sft, 0};
  using alarms = alarms_of_sft;  ///< the alarms of this set
};
struct grpo : fills<slot::health> {
  static constexpr settings configured{kind::grpo, 0};
};
struct ebft : fills<slot::health> {
  static constexpr settings configured{kind::ebft, 0};
};
template <class... Entries>
struct watch : fills<slot::health> {
  static constexpr settings configured{kind::watch, static_cast<int>(sizeof...(Entries))};
  using alarms = alarm_list<Entries...>;  ///< the alarms of this set
};

/// An alarm of a recipe and the action bound to it.
struct watched_alarm {
  health::alarm const* what = nullptr;  ///< the alarm
  health::action does = action::log;    ///< the action
};

namespace detail {

template <class Entry>
struct is_then : std::false_type {};
template <class Entry, class Action>
struct is_then<then<Entry, Action>> : std::true_type {};

/// True for an alarm, a set of alarms, and either of them with an action.
template <class Entry>
constexpr bool is_entry();
template <class... Entries>
constexpr bool are_entries(alarm_list<Entries...>) {
  return (is_entry<Entries>() && ...);
}
template <class Entry>
constexpr bool is_entry() {
  if constexpr (is_then<Entry>::value) {
    return is_entry<typename Entry::entry>();
  } else if constexpr (alarm_set<Entry>) {
    return are_entries(typename Entry::alarms{});
  } else {
    return alarm_type<Entry>;
  }
}

template <class Visit, class... Entries>
constexpr void visit_alarms(alarm_list<Entries...>, action does, Visit& visit);
template <class Entry, class Visit>
constexpr void visit_alarm(action does, Visit& visit) {
  if constexpr (is_then<Entry>::value) {
    visit_alarm<typename Entry::entry>(Entry::does, visit);
  } else if constexpr (alarm_set<Entry>) {
    visit_alarms(typename Entry::alarms{}, does, visit);
  } else if constexpr (alarm_type<Entry>) {
    visit(watched_alarm{&Entry::configured, does});
  }
}
template <class Visit, class... Entries>
constexpr void visit_alarms(alarm_list<Entries...>, action does, Visit& visit) {
  (visit_alarm<Entries>(does, visit), ...);
}

}  // namespace detail

/// False if the policy has an entry that is neither an alarm nor a set, with or without an action.
template <class Policy>
constexpr bool has_alarms_only() {
  if constexpr (alarm_set<Policy>) {
    return detail::are_entries(typename Policy::alarms{});
  } else {
    return true;
  }
}

/// True if the policy binds an alarm to this action.
template <class Policy>
constexpr bool binds_action(action wanted) {
  bool found = false;
  if constexpr (alarm_set<Policy>) {
    auto const visit = [&](watched_alarm const& one) { found = found || one.does == wanted; };
    detail::visit_alarms(typename Policy::alarms{}, action::log, visit);
  }
  return found;
}

/// Calls `visit(watched_alarm)` for each alarm of a policy of this slot, in the order of its entries.
template <class Policy, class Visit>
constexpr void for_each_alarm(Visit&& visit) {
  if constexpr (alarm_set<Policy>) detail::visit_alarms(typename Policy::alarms{}, action::log, visit);
}

}  // namespace keel::health

namespace keel {

struct slot::health : slot_description {
  using settings = keel::health::settings;
  using default_policy = keel::health::off;
  static constexpr char const* name = "health";
  static constexpr char const* given_twice = "D10";
  static constexpr policy_list<settings, 5> policies() {
    return {{{"off", {}},
             {"sft", {keel::health::kind::sft}},
             {"grpo", {keel::health::kind::grpo}},
             {"ebft", {keel::health::kind::ebft}},
             {"watch", {keel::health::kind::watch}, " alarms ", "alarms", true}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.number_between("alarms", s.alarms, 0, 1000); }
};

}  // namespace keel
