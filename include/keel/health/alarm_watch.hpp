// Evaluates a recipe's alarms on the metrics of a run. Its state is part of a checkpoint, so that a resumed run raises the same alarms and
// a rollback discards the values of abandoned updates.
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

/// An alarm whose conditions became true at this update.
struct raised_alarm {
  health::alarm const* what = nullptr;                 ///< the alarm
  health::action does = health::action::log;           ///< what the run does
  std::int64_t update = 0;                             ///< number of applied updates
  std::vector<std::pair<std::string, double>> values;  ///< the newest values of the metrics that it watches
};

/// The recent values of a metric, and a summary of earlier ones.
class metric_series {
 public:
  /// Keeps enough values for a condition with this window.
  void look_back(int window) { longest_ = window > longest_ ? window : longest_; }
  int longest() const { return longest_; }
  /// Adds a value. `starts`: it is one of the run's first.
  void push(double value, bool starts);
  /// Clears the windows, at the end of the warm-up.
  void forget_window() { last_.clear(); }
  bool holds(health::condition const& of) const;
  /// Returns the newest values, at most `window`.
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
  /// Returns the median of the run's first values; nullopt if they were not recorded.
  std::optional<double> start() const;
  bool is_jumping(std::size_t begin, double factor, double floor) const;

  int longest_ = 1;
  bool not_finite_ = false;  ///< the newest value is NaN or infinite, and in no window
  std::deque<double> last_;
  std::vector<double> first_;   ///< the first eight values of the run
  std::vector<double> lowest_;  ///< lowest value that left the window; empty or one value
};

class alarm_watch {
 public:
  /// `warmup`: warm-up updates of the schedule. Throws error (E12) for an alarm whose conditions can never hold.
  explicit alarm_watch(std::vector<health::watched_alarm> const& alarms = {}, std::int64_t warmup = 0);
  void set_warmup(std::int64_t updates) { warmup_ = std::max<std::int64_t>(updates, 20); }

  bool is_empty() const { return alarms_.empty(); }

  /// Returns user-defined alarms on metrics that never had a value, with the metric.
  std::vector<std::pair<std::string, std::string>> never_seen() const;

  /// Returns the values that a condition evaluates.
  std::vector<double> window(health::condition const& of) const;

  /// Call after every update, applied or skipped. Returns the alarms that it raises.
  std::vector<raised_alarm> update(update_metrics const& m);
  /// Call before the update that the event belongs to. `name`: "event/slowdown" or "event/memory_grows".
  void event(std::string_view name, bool comes);
  /// Adds the layer statistics of an update, under the names that sinks receive. Conditions are evaluated with the next update.
  void layers(layer_record const& record);
  /// Call after an evaluation of the recipe. Values are named as in the record; "loss" is prefixed with the evaluation's name.
  std::vector<raised_alarm> evaluated(std::int64_t update, std::string const& evaluation,
                                      std::vector<std::pair<std::string, double>> const& values);

  template <class Archive>
  void visit(Archive& archive) {
    // Values that depend on a clock are not reproducible after a resume.
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
    std::int64_t raised_at = -1;  ///< attempt at which it last held; -1: it may be raised
    bool is_of_evaluations = false;
    bool is_of_a_clock = false;
    std::int64_t cadence = 1;  ///< attempts between two evaluations, because a single value hardly changes a long window
    int longest = 1;
  };

  /// Restores a state; of another recipe's alarms only the common ones.
  void take(std::map<std::string, metric_series> metrics, std::map<std::string, std::int64_t> const& raised);
  static bool is_of_a_clock(std::string_view metric);
  void push(std::string_view metric, double value);
  void push_evaluation(std::string const& group, std::string const& name, double value);
  std::vector<raised_alarm> judge(std::int64_t update, bool of_evaluations);

  std::vector<watched> alarms_;
  std::map<std::string, metric_series, std::less<>> series_;
  std::int64_t warmup_;
  std::int64_t seen_ = 0;                     ///< updates, including skipped ones
  bool warm_ = false;                         ///< the warm-up has ended
  std::vector<std::string> main_evaluation_;  ///< name of the first evaluation, whose values alarms also find under "eval/"
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns all alarms of a policy for the slot health. If several have the same name, the last one counts.
template <class Policy>
std::vector<health::watched_alarm> alarms_of() {
  std::vector<health::watched_alarm> all;
  health::for_each_alarm<Policy>([&](health::watched_alarm const& one) {
    for (health::watched_alarm& other : all) {
      if (std::string_view(other.what->name) == one.what->name) {
        // An action that was bound by name is kept if a set contains the same alarm.
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
