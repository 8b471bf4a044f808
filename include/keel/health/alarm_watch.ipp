// Definitions for alarm_watch.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <keel/core/error.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/metrics/layer_metric.hpp>
#include <keel/metrics/run_metric.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void metric_series::push(double value, bool starts) {
  not_finite_ = !std::isfinite(value);
  // A NaN cannot be ordered.
  if (not_finite_) return;
  constexpr std::size_t of_the_start = 8;
  if (starts && first_.size() < of_the_start) first_.push_back(value);
  last_.push_back(value);
  while (last_.size() > static_cast<std::size_t>(longest_)) {
    double const left = last_.front();
    last_.pop_front();
    if (lowest_.empty()) {
      lowest_.push_back(left);
    } else {
      lowest_.front() = std::min(lowest_.front(), left);
    }
  }
}

KEEL_BODY std::optional<double> metric_series::start() const {
  if (first_.empty()) return std::nullopt;
  std::vector<double> values = first_;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

KEEL_BODY double metric_series::median(std::size_t begin, std::size_t end) const {
  std::vector<double> values(last_.begin() + static_cast<std::ptrdiff_t>(begin),
                             last_.begin() + static_cast<std::ptrdiff_t>(end));
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Returns true if the value before the last four exceeds its neighbours on both sides. Deviations are taken of logarithms, because the
/// noise of a loss is multiplicative, and from the median of distances, which is robust to a single value.
KEEL_BODY bool metric_series::is_jumping(std::size_t begin, double factor, double floor) const {
  constexpr std::size_t after = 4;
  constexpr double deviations = 7.0;
  // Scales the median absolute deviation to the standard deviation of a normal distribution.
  constexpr double to_deviation = 1.4826;
  if (last_.size() - begin < 4 * after) return false;
  std::size_t const at = last_.size() - 1 - after;
  double const value = last_[at];
  double const before = std::max(median(begin, at), floor);
  if (!(before > 0.0 && value >= factor * before && value >= factor * median(at + 1, last_.size()))) return false;
  std::vector<double> distances;
  distances.reserve(at - begin);
  for (std::size_t i = begin; i < at; ++i)
    distances.push_back(std::max(last_[i], floor) > 0.0 ? std::abs(std::log(std::max(last_[i], floor) / before)) : INFINITY);
  auto const middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
  std::nth_element(distances.begin(), middle, distances.end());
  return std::log(value / before) >= deviations * to_deviation * *middle;
}

KEEL_BODY bool metric_series::holds(health::condition const& of) const {
  if (of.is == health::is::not_finite) return not_finite_;
  auto const window = static_cast<std::size_t>(of.window);
  std::size_t const least = of.is == health::is::jumping ? window / 2 : of.is == health::is::gaining ? 2 : window;
  if (last_.empty() || last_.size() < least) return false;
  std::size_t const begin = last_.size() > window ? last_.size() - window : 0;
  std::size_t const quarter = std::max<std::size_t>(window / 4, 1);
  auto const count = [&](auto const& is_counted) {
    return static_cast<std::size_t>(std::count_if(last_.begin() + static_cast<std::ptrdiff_t>(begin), last_.end(), is_counted));
  };
  auto const newest = [&] { return median(last_.size() - quarter, last_.size()); };
  auto const oldest = [&] { return median(begin, begin + quarter); };
  // Values below 1 % of the run's start are clamped: on a memorized data set a tenfold loss is as good.
  double const floor = 0.01 * std::abs(start().value_or(0.0));
  auto const floored = [&](double value) { return std::max(value, floor); };
  switch (of.is) {
    case health::is::above:
      return count([&](double value) { return value > of.threshold; }) == window;
    case health::is::below:
      return count([&](double value) { return value < of.threshold; }) == window;
    case health::is::often_above:
      return 2 * count([&](double value) { return value > of.threshold; }) >= window;
    case health::is::jumping:
      return is_jumping(begin, of.threshold, floor);
    case health::is::oscillating: {
      std::size_t changes = 0;
      for (std::size_t i = begin + 1; i < last_.size(); ++i) {
        double const one = floored(std::abs(last_[i]));
        double const before = floored(std::abs(last_[i - 1]));
        if (std::max(one, before) >= of.threshold * std::min(one, before) && one != before) ++changes;
      }
      return window > 1 && 2 * changes >= window - 1;
    }
    case health::is::rising:
      return oldest() > 0.0 && newest() >= of.threshold * floored(oldest()) && newest() > oldest();
    case health::is::falling:
      return oldest() > 0.0 && newest() <= of.threshold * oldest() && newest() < oldest();
    case health::is::flat: {
      double lowest = oldest();
      double highest = lowest;
      for (std::size_t part = 1; part < 4; ++part) {
        std::size_t const from = begin + part * window / 4;
        double const one = median(from, std::max(from + 1, begin + (part + 1) * window / 4));
        lowest = std::min(lowest, one);
        highest = std::max(highest, one);
      }
      return highest - lowest <= of.threshold * std::abs(highest);
    }
    case health::is::constant: {
      auto const [low, high] = std::minmax_element(last_.begin() + static_cast<std::ptrdiff_t>(begin), last_.end());
      return *high - *low <= of.threshold * std::max(std::abs(*high), std::abs(*low));
    }
    case health::is::gaining:
      return last_.back() - last_[begin] >= of.threshold;
    case health::is::above_lowest: {
      double lowest = lowest_.empty() ? INFINITY : lowest_.front();
      for (std::size_t i = 0; i < begin; ++i) lowest = std::min(lowest, last_[i]);
      return std::isfinite(lowest) && lowest > 0.0 &&
             count([&](double value) { return value > of.threshold * floored(lowest); }) == window;
    }
    case health::is::above_start:
      return start().value_or(0.0) > 0.0 && newest() > of.threshold * *start();
    case health::is::not_finite:
      break;
  }
  return false;
}

KEEL_BODY alarm_watch::alarm_watch(std::vector<health::watched_alarm> const& alarms, std::int64_t warmup)
    : warmup_(std::max<std::int64_t>(warmup, 20)) {
  constexpr int longest_window = 4096;
  for (health::watched_alarm const& bound : alarms) {
    watched one{bound.what, bound.does};
    int conditions = 0;
    int shortest = longest_window;
    for (health::condition const& condition : bound.what->conditions) {
      if (condition.metric == nullptr) continue;
      ++conditions;
      if (condition.window < 1 || condition.window > longest_window || std::isnan(condition.threshold))
        throw error("E12", std::string("the alarm ") + bound.what->name + " looks at " + std::to_string(condition.window) +
                               " values of " + condition.metric +
                               ". Give it a window of 1 to 4096 values, and a threshold that is a number.");
      std::string_view const metric = condition.metric;
      series_[condition.metric].look_back(condition.window);
      // The denominator of the ratio.
      if (metric.ends_with("/loss_ratio")) series_["smoothed/loss"].look_back(1);
      if (conditions == 1) one.is_of_evaluations = metric.starts_with("eval/");
      one.is_of_a_clock = one.is_of_a_clock || is_of_a_clock(metric);
      one.longest = std::max(one.longest, condition.window);
      shortest = condition.is == health::is::jumping ? 1 : std::min(shortest, condition.window);
    }
    constexpr int short_window = 64;
    if (shortest > short_window && !one.is_of_evaluations) one.cadence = shortest / 32;
    if (conditions == 0)
      throw error("E12", std::string("the alarm ") + bound.what->name +
                             " has no condition, so that it would never be raised. Give it one, as {\"train/loss\", "
                             "keel::health::is::above, 10.0, 5}.");
    alarms_.push_back(one);
  }
}

KEEL_BODY void alarm_watch::take(std::map<std::string, metric_series> metrics,
                                 std::map<std::string, std::int64_t> const& raised) {
  for (auto& [name, series] : series_) {
    auto const found = metrics.find(name);
    if (found == metrics.end()) continue;
    int const longest = series.longest();
    series = std::move(found->second);
    series.look_back(longest);
  }
  for (watched& one : alarms_) {
    if (one.is_of_a_clock) continue;
    auto const found = raised.find(one.what->name);
    one.raised_at = found != raised.end() ? found->second : -1;
  }
}

KEEL_BODY std::vector<double> metric_series::newest(int window) const {
  std::size_t const count = std::min(last_.size(), static_cast<std::size_t>(window));
  return {last_.end() - static_cast<std::ptrdiff_t>(count), last_.end()};
}

KEEL_BODY std::vector<double> alarm_watch::window(health::condition const& of) const {
  auto const found = series_.find(std::string_view(of.metric));
  return found != series_.end() ? found->second.newest(of.window) : std::vector<double>();
}

KEEL_BODY bool alarm_watch::is_of_a_clock(std::string_view metric) {
  return metric.starts_with("event/") || metric.starts_with("time/") || metric.starts_with("gpu/") ||
         metric == "stability/data_wait" || metric == "train/mfu" || metric == "train/tokens_per_sec" ||
         metric == "train/step_time_sec";
}

KEEL_BODY void alarm_watch::push(std::string_view metric, double value) {
  // If the alarms were added during the run, its start is unknown.
  constexpr std::int64_t of_the_start = 8;
  auto const found = series_.find(metric);
  if (found != series_.end()) found->second.push(value, seen_ <= of_the_start);
}

KEEL_BODY void alarm_watch::event(std::string_view name, bool comes) { push(name, comes ? 1.0 : 0.0); }

KEEL_BODY void alarm_watch::layers(layer_record const& record) {
  if (alarms_.empty()) return;
  for_each_value(record, [&](std::string const& name, double value) { push(name, value); });
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

template <class... Metrics>
bool is_metric_of_keel(run_metric_list<Metrics...>, std::string_view name) {
  return ((name == Metrics::name) || ...);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<std::pair<std::string, std::string>> alarm_watch::never_seen() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (watched const& one : alarms_) {
    for (health::condition const& condition : one.what->conditions) {
      if (condition.metric == nullptr) continue;
      std::string_view const metric = condition.metric;
      // Built-in metrics may be missing legitimately, such as those of evaluations in a run without any.
      if (detail::is_metric_of_keel(run_metrics{}, metric) || metric.starts_with("eval/") || metric.starts_with("event/"))
        continue;
      if (!series_.find(metric)->second.has_any()) all.emplace_back(one.what->name, metric);
    }
  }
  return all;
}

KEEL_BODY std::vector<raised_alarm> alarm_watch::update(update_metrics const& m) {
  if (alarms_.empty()) return {};
  seen_ = m.attempt;
  if (!warm_ && m.update > warmup_) {
    warm_ = true;
    for (auto& [name, series] : series_) series.forget_window();
  }
  for_each_value(m, [&](std::string_view name, double value) { push(name, value); });
  return judge(m.update, false);
}

KEEL_BODY std::vector<raised_alarm> alarm_watch::evaluated(std::int64_t update, std::string const& evaluation,
                                                           std::vector<std::pair<std::string, double>> const& values) {
  if (alarms_.empty()) return {};
  if (main_evaluation_.empty()) main_evaluation_.push_back(evaluation);
  std::string const group = evaluation_group(evaluation);
  for (auto const& [logged, value] : values) {
    std::string const name = logged.empty() ? metrics::evaluation_loss::name : logged;
    push_evaluation(group, name, value);
    if (group != "eval/" && evaluation == main_evaluation_.front()) push_evaluation("eval/", name, value);
  }
  return judge(update, true);
}

KEEL_BODY void alarm_watch::push_evaluation(std::string const& group, std::string const& name, double value) {
  push(group + name, value);
  if (name != "loss") return;
  auto const trained = series_.find("smoothed/loss");
  auto const mean = trained != series_.end() ? trained->second.newest() : std::nullopt;
  if (mean && *mean > 0.0) push(group + "loss_ratio", value / *mean);
}

KEEL_BODY std::vector<raised_alarm> alarm_watch::judge(std::int64_t update, bool of_evaluations) {
  std::vector<raised_alarm> raised;
  for (watched& one : alarms_) {
    if ((one.what->part == health::part::after_warmup) != warm_) continue;
    if (one.is_of_evaluations != of_evaluations || (!of_evaluations && seen_ % one.cadence != 0)) continue;
    bool holds = true;
    for (health::condition const& condition : one.what->conditions) {
      if (condition.metric == nullptr || !holds) continue;
      holds = series_.find(std::string_view(condition.metric))->second.holds(condition);
    }
    bool const was_raised = one.raised_at >= 0;
    if (holds) {
      one.raised_at = seen_;
    } else if (was_raised && seen_ - one.raised_at > std::max(50, one.longest)) {
      // It may be raised again.
      one.raised_at = -1;
    }
    if (!holds || was_raised) continue;
    raised_alarm now{one.what, one.does, update, {}};
    for (health::condition const& condition : one.what->conditions) {
      if (condition.metric == nullptr) continue;
      auto const value = series_.find(std::string_view(condition.metric))->second.newest();
      bool const is_there =
          std::any_of(now.values.begin(), now.values.end(), [&](auto const& other) { return other.first == condition.metric; });
      if (value && !is_there) now.values.emplace_back(condition.metric, *value);
    }
    raised.push_back(std::move(now));
  }
  return raised;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
