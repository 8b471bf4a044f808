// Watches the metrics of a run for a recipe's alarms. What it remembers is part of a checkpoint, so that a resumed run raises the same
// alarms, and one that rolled back forgets what it left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <keel/policy/health.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// An alarm that holds since this update.
struct raised_alarm {
  health::alarm const* what = nullptr;                 ///< the alarm
  health::action does = health::action::log;           ///< what the run does
  std::int64_t update = 0;                             ///< updates applied
  std::vector<std::pair<std::string, double>> values;  ///< of the metrics that it watches, the newest ones
};

/// The last values of a metric, and what is remembered of those before.
class metric_series {
 public:
  /// Keeps as many as the longest window that looks at it.
  void look_back(int window) { longest_ = window > longest_ ? window : longest_; }
  int longest() const { return longest_; }
  /// `starts`: it may be among the run's first.
  void push(double value, bool starts);
  /// The warm-up has ended: what was before belongs to no window.
  void forget_window() { last_.clear(); }
  bool holds(health::condition const& of) const;
  /// The newest values that a window of this length has.
  std::vector<double> newest(int window) const;
  std::optional<double> newest() const { return last_.empty() ? std::nullopt : std::optional(last_.back()); }
  bool has_any() const { return !last_.empty() || not_finite_; }

  template <class Archive>
  void visit(Archive& archive) {
    std::vector<double> last(last_.begin(), last_.end());
    archive("last", last);
    archive("first", first_);
    archive("lowest", lowest_);
    archive("not_finite", not_finite_);
    if constexpr (requires { Archive::reads; }) last_.assign(last.begin(), last.end());
  }

 private:
  double median(std::size_t begin, std::size_t end) const;
  /// Of the run's first values; nothing where this watch has not seen them.
  std::optional<double> start() const;
  bool is_jumping(std::size_t begin, double factor, double floor) const;

  int longest_ = 1;
  bool not_finite_ = false;  ///< the newest value is NaN or infinite, and in no window
  std::deque<double> last_;
  std::vector<double> first_;   ///< the first eight of the run
  std::vector<double> lowest_;  ///< before the window: nothing, or one value
};

class alarm_watch {
 public:
  /// `warmup`: updates of the schedule's. Throws error (E12) for an alarm whose conditions no run can meet.
  explicit alarm_watch(std::vector<health::watched_alarm> const& alarms = {}, std::int64_t warmup = 0);
  void set_warmup(std::int64_t updates) { warmup_ = std::max<std::int64_t>(updates, 20); }

  bool is_empty() const { return alarms_.empty(); }

  /// Alarms of the program's about a metric that never had a value, and the metric.
  std::vector<std::pair<std::string, std::string>> never_seen() const;

  /// The values that a condition looks at.
  std::vector<double> window(health::condition const& of) const;

  /// After an update, applied or skipped. Returns the alarms that are raised by it.
  std::vector<raised_alarm> update(update_metrics const& m);
  /// Before the update that it is about: "event/slowdown" or "event/memory_grows".
  void event(std::string_view name, bool comes);
  /// What an update found in its layers, under the names that sinks know; conditions look at it with the next update.
  void layers(layer_record const& record);
  /// After an evaluation of the recipe; values as they stand in the record, "loss" under the name of its evaluation.
  std::vector<raised_alarm> evaluated(std::int64_t update, std::string const& evaluation,
                                      std::vector<std::pair<std::string, double>> const& values);

  template <class Archive>
  void visit(Archive& archive) {
    // What a clock decides does not come again with a run that is resumed.
    std::map<std::string, metric_series> metrics;
    for (auto const& [name, series] : series_) {
      if (!is_of_a_clock(name)) metrics.emplace(name, series);
    }
    archive("metrics", metrics);
    std::map<std::string, std::int64_t> raised;
    for (watched const& one : alarms_) {
      if (one.raised_at >= 0 && !one.is_of_a_clock) raised[one.what->name] = one.raised_at;
    }
    archive("raised", raised);
    archive("warm", warm_);
    archive("seen", seen_);
    archive("main_evaluation", main_evaluation_);
    if constexpr (requires { Archive::reads; }) take(std::move(metrics), raised);
  }

 private:
  struct watched {
    health::alarm const* what;
    health::action does;
    std::int64_t raised_at = -1;  ///< attempts, the last time that it held; -1: it may be raised
    bool is_of_evaluations = false;
    bool is_of_a_clock = false;
    std::int64_t cadence = 1;  ///< attempts between two looks: a long window hardly changes with one value
    int longest = 1;
  };

  /// Of another recipe's alarms what they have in common.
  void take(std::map<std::string, metric_series> metrics, std::map<std::string, std::int64_t> const& raised);
  static bool is_of_a_clock(std::string_view metric);
  void push(std::string_view metric, double value);
  void push_evaluation(std::string const& group, std::string const& name, double value);
  std::vector<raised_alarm> judge(std::int64_t update, bool of_evaluations);

  std::vector<watched> alarms_;
  std::map<std::string, metric_series, std::less<>> series_;
  std::int64_t warmup_;
  std::int64_t seen_ = 0;                     ///< updates, the skipped ones included
  bool warm_ = false;                         ///< the warm-up has ended
  std::vector<std::string> main_evaluation_;  ///< the first one's name, whose values stand under "eval/" for alarms
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// All alarms of a policy of the slot health; of those with one name the last.
template <class Policy>
std::vector<health::watched_alarm> alarms_of() {
  std::vector<health::watched_alarm> all;
  health::for_each_alarm<Policy>([&](health::watched_alarm const& one) {
    for (health::watched_alarm& other : all) {
      if (std::string_view(other.what->name) == one.what->name) {
        // An action that was bound by name stays, where a set has the alarm too.
        bool const keeps = other.does != health::action::log && one.does == health::action::log;
        other = {one.what, keeps ? other.does : one.does};
        return;
      }
    }
    all.push_back(one);
  });
  return all;
}

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/health/alarm_watch.ipp>
#endif
