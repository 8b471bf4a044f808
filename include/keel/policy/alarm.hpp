// The type of an alarm: conditions on metrics, and texts that tell a person how to respond.
#pragma once

#include <keel/policy/trouble.hpp>
#include <type_traits>

namespace keel::health {

/// Predicates over a rolling window of a metric. A quarter's median is the median of the oldest or newest quarter of the window. Ratio
/// predicates require positive values; values below 1 % of the metric's value at the start of the run are clamped to it.
enum class is : unsigned char {
  above,        ///< all values are above the threshold
  below,        ///< all values are below the threshold
  often_above,  ///< at least half of the values are above the threshold
  jumping,  ///< one value exceeds the median before it and that of the next four by the threshold's factor, and by seven deviations
  oscillating,   ///< at least half of the changes between successive values are by this factor, up or down
  rising,        ///< the newest quarter's median is at least the threshold times the oldest's
  falling,       ///< the newest quarter's median is at most the threshold times the oldest's
  flat,          ///< the medians of the four quarters differ by at most this fraction
  constant,      ///< the highest and the lowest value differ by at most this fraction
  gaining,       ///< the newest value exceeds the oldest of the window by at least the threshold
  above_lowest,  ///< all values are above the threshold times the lowest earlier value
  above_start,   ///< the newest quarter's median is above the threshold times the median of the run's first eight values
  not_finite     ///< the newest value is NaN or infinite; such values never enter a window
};

/// A condition on one metric, named as in sinks (keel/metrics/README.md) or as the program logs it. Layer metrics arrive at their own
/// cadence. "eval/loss" has one value per evaluation; "eval/loss_ratio" is the evaluation loss divided by the mean of the last training
/// losses.
struct condition {
  char const* metric = nullptr;  ///< the metric's name; null: no condition
  health::is is = is::above;     ///< the predicate
  double threshold = 0.0;        ///< a value, a factor or a fraction, depending on `is`
  int window = 1;                ///< number of values, at most 4096
};

/// Severity of an alarm.
enum class severity : unsigned char { notice, warning, critical };

/// The part of a run in which an alarm is evaluated. The warm-up is that of the schedule, and at least the first 20 updates of every run.
enum class part : unsigned char { after_warmup, warmup };

/// Maximum number of conditions of one alarm.
inline constexpr int max_conditions = 3;

/// An alarm: the conditions that raise it, its likely causes and its fixes.
struct alarm {
  char const* name;                               ///< used in events, records and recipes
  condition conditions[max_conditions] = {};      ///< the alarm is raised when all of them hold
  health::severity severity = severity::warning;  ///< a warning unless given
  health::part part = part::after_warmup;         ///< the part of the run in which it is evaluated
  char const* symptom = "";                       ///< the observed symptom
  likely_cause causes[max_texts] = {};            ///< most likely first
  fix_list fixes = fixes_of(causes);              ///< the fixes of its causes, or its own; least invasive first
};

/// The run's response to an alarm; policy/health.hpp explains each.
enum class action : unsigned char { log, checkpoint, incident, stop };

/// "notice", "warning" or "critical".
constexpr char const* to_string(severity which) {
  constexpr char const* names[] = {"notice", "warning", "critical"};
  return names[static_cast<int>(which)];
}
/// "log", "checkpoint", "incident" or "stop".
constexpr char const* to_string(action which) {
  constexpr char const* names[] = {"log", "checkpoint", "incident", "stop"};
  return names[static_cast<int>(which)];
}

// The actions as policies.
/// Writes the alarm into the record, as every action does.
struct log {
  static constexpr health::action does = action::log;
};
/// Also saves a checkpoint at the next update boundary.
struct checkpoint {
  static constexpr health::action does = action::checkpoint;
};
/// Also writes the values that raised the alarm into the run directory.
struct incident {
  static constexpr health::action does = action::incident;
};
/// Also ends the run at the next update boundary and saves its checkpoint.
struct stop {
  static constexpr health::action does = action::stop;
};

/// A type with `static constexpr keel::health::alarm configured`.
template <class Type>
concept alarm_type = requires { requires std::is_same_v<std::remove_cvref_t<decltype(Type::configured)>, alarm>; };

/// A set's alarms, in order.
template <class... Alarms>
struct alarm_list {};

/// A type with `using alarms = alarm_list<..>`, such as sft.
template <class Type>
concept alarm_set = requires { typename Type::alarms; };

/// Binds an action to an alarm or to each alarm of a set.
template <class Entry, class Action>
  requires requires { action(Action::does); }
struct then {
  using entry = Entry;                          ///< the alarm or set
  static constexpr action does = Action::does;  ///< the action
};

}  // namespace keel::health
