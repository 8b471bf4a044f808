// What an alarm is: conditions on metrics, and the words for a person who has to do something about them.
#pragma once

#include <type_traits>

namespace keel::health {

/// What the last values of a metric are, beside a threshold. A quarter's median is that of the oldest or newest
/// quarter of the window. Those that are about ratios need positive values, and take what is below a hundredth of the run's start for that.
enum class is : unsigned char {
  above,         ///< all of them
  below,         ///< all of them
  often_above,   ///< at least half of them
  jumping,       ///< one is the threshold times the median before it and that of the four after it, and seven deviations above
  oscillating,   ///< at least half of the changes from one to the next are by this factor, up or down
  rising,        ///< the newest quarter's median is at least the threshold times the oldest's
  falling,       ///< the newest quarter's median is at most the threshold times the oldest's
  flat,          ///< the medians of the four quarters are within this share of each other
  constant,      ///< the highest and the lowest are within this share of each other
  gaining,       ///< the newest is above the oldest of the window by the threshold at least
  above_lowest,  ///< all are above the threshold times the lowest that came before them
  above_start,   ///< the newest quarter's median is above the threshold times the median of the run's first eight
  not_finite     ///< the newest is NaN or infinite; such a value is in no window
};

/// Of a metric by the name that sinks know (keel/metrics/README.md), or that the program logs; layers come at their cadence. "eval/loss" has a value an evaluation;
/// "eval/loss_ratio" is that over the mean of the last training losses.
struct condition {
  char const* metric = nullptr;  ///< by name; null: there is not a condition here
  health::is is = is::above;     ///< what the values are
  double threshold = 0.0;        ///< a value, a factor or a share, as `is` says
  int window = 1;                ///< values, at most 4096
};

/// How bad it is.
enum class severity : unsigned char { notice, warning, critical };

/// Of which part of a run an alarm is. The warm-up is the schedule's, and the first 20 updates of every run.
enum class part : unsigned char { after_warmup, warmup };

/// The most conditions that one alarm has.
inline constexpr int max_conditions = 3;
/// The most causes, and the most fixes, that one alarm has.
inline constexpr int max_texts = 6;

/// An alarm: when it is raised, and what a person may do about it.
struct alarm {
  char const* name;                               ///< in events, records and recipes
  condition conditions[max_conditions] = {};      ///< all of them hold, where the alarm is raised
  health::severity severity = severity::warning;  ///< how bad it is
  health::part part = part::after_warmup;         ///< of the run, in which it is looked at
  char const* symptom = "";                       ///< what is seen
  char const* causes[max_texts] = {};             ///< likely ones first
  char const* fixes[max_texts] = {};              ///< least invasive first
};

/// What the run does when an alarm is raised; policy/health.hpp explains each.
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

// Actions as they are typed.
/// An action: writes the alarm into the record, which every alarm does.
struct log {
  static constexpr health::action does = action::log;
};
/// An action: also saves a checkpoint at the next update boundary.
struct checkpoint {
  static constexpr health::action does = action::checkpoint;
};
/// An action: also writes the values that raised it into the run directory.
struct incident {
  static constexpr health::action does = action::incident;
};
/// An action: also ends the run at the next update boundary, with its checkpoint.
struct stop {
  static constexpr health::action does = action::stop;
};

/// A type with `static constexpr keel::health::alarm configured`.
template <class Type>
concept alarm_type = requires { requires std::is_same_v<std::remove_cvref_t<decltype(Type::configured)>, alarm>; };

/// The alarms of a set, in order.
template <class... Alarms>
struct alarm_list {};

/// A type with `using alarms = alarm_list<..>`, such as sft.
template <class Type>
concept alarm_set = requires { typename Type::alarms; };

/// An alarm, or a set of them, with what the run does.
template <class Entry, class Action>
  requires requires { action(Action::does); }
struct then {
  using entry = Entry;                          ///< the alarm or set
  static constexpr action does = Action::does;  ///< what the run does
};

}  // namespace keel::health
