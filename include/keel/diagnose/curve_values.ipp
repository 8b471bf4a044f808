// Definitions for curve_values.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <keel/diagnose/curve_values.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY double median_of(std::vector<double> values) {
  std::erase_if(values, [](double one) { return !std::isfinite(one); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

KEEL_BODY curve_shape shape_of(std::span<curve_point const> points) {
  curve_shape found;
  std::vector<curve_point> finite;
  for (curve_point const& one : points) {
    if (std::isfinite(one.value)) finite.push_back(one);
  }
  found.count = finite.size();
  if (finite.empty()) return found;
  auto const median = [&](std::size_t begin, std::size_t end) {
    std::vector<double> values;
    for (std::size_t i = begin; i < std::min(end, finite.size()); ++i) values.push_back(finite[i].value);
    return median_of(std::move(values));
  };
  std::size_t const count = finite.size();
  // The first loss is the start if the first updates diverged, or if the run learned within a few updates.
  double const first = finite.front().value, soon = median(0, std::clamp<std::size_t>(count / 20, 3, 5));
  found.start = soon > 2.0 * first ? first : std::max(first, soon);
  found.highest =
      std::max_element(finite.begin(), finite.end(), [](auto const& a, auto const& b) { return a.value < b.value; })->value;
  found.last = median(count - std::min(count, std::max<std::size_t>(5, count / 10)), count);
  constexpr std::size_t tenths = 10;
  found.lowest = found.start;
  found.lowest_at = finite.front().update;
  found.settled = median(3 * count / 10, count / 2);
  double before = 0.0;
  std::size_t rises = 0, looked_at = 0;
  for (std::size_t i = 0; i < tenths && count >= tenths; ++i) {
    std::size_t const begin = i * count / tenths, end = (i + 1) * count / tenths;
    double const here = median(begin, end);
    if (here < found.lowest) {
      found.lowest = here;
      found.lowest_at = finite[(begin + end) / 2].update;
    }
    if (i > tenths / 2) {
      ++looked_at;
      if (here > before) ++rises;
    }
    before = here;
  }
  if (looked_at > 0) found.rising = static_cast<double>(rises) / static_cast<double>(looked_at);
  std::vector<double> changes;
  for (std::size_t i = count / 2 + 1; i < count; ++i) changes.push_back(std::abs(finite[i].value - finite[i - 1].value));
  if (!changes.empty()) found.noise = median_of(std::move(changes));
  return found;
}

KEEL_BODY std::span<curve_point const> points_of(run_curve const& curve) { return curve.kept; }

KEEL_BODY std::span<curve_point const> points_of(run_history const& history, std::string const& key) {
  auto const found = history.curves.find(key);
  if (found == history.curves.end()) return {};
  return found->second.kept;
}

KEEL_BODY std::vector<double> values_between(std::span<curve_point const> points, std::int64_t from, std::int64_t to) {
  std::vector<double> values;
  for (curve_point const& one : points) {
    if (one.update > from && one.update <= to) values.push_back(one.value);
  }
  return values;
}

KEEL_BODY std::vector<double> values_of(std::span<curve_point const> points) {
  std::vector<double> values;
  for (curve_point const& one : points) values.push_back(one.value);
  return values;
}

KEEL_BODY run_event const* first_event(run_history const& history, std::string_view name) {
  auto const found =
      std::find_if(history.events.begin(), history.events.end(), [&](run_event const& one) { return one.name == name; });
  return found == history.events.end() ? nullptr : &*found;
}

KEEL_BODY run_event const* last_event(run_history const& history, std::string_view name) {
  auto const found =
      std::find_if(history.events.rbegin(), history.events.rend(), [&](run_event const& one) { return one.name == name; });
  return found == history.events.rend() ? nullptr : &*found;
}

KEEL_BODY std::string text_of(run_event const& event, char const* key) {
  auto const found = event.details.find(key);
  return found != event.details.end() && found->is_string() ? found->get<std::string>() : std::string();
}

KEEL_BODY double number_of(run_event const& event, char const* key) {
  auto const found = event.details.find(key);
  return found == event.details.end() ? 0.0 : number_in(*found).value_or(0.0);
}

KEEL_BODY double number_of(run_event const& event, char const* object, char const* key) {
  auto const outer = event.details.find(object);
  if (outer == event.details.end() || !outer->is_object() || !outer->contains(key)) return 0.0;
  return number_in((*outer)[key]).value_or(0.0);
}

KEEL_BODY std::map<std::string, run_curve> evaluations_of(run_history const& run) {
  std::map<std::string, run_curve> curves;
  for (auto const& event : run.events) {
    if (event.name == "rolled_back" || event.name == "restarted") {
      auto const to = event.details.find("to");
      std::int64_t const update = to != event.details.end() ? integer_in(event.details, "to") : event.update;
      abandon_after(curves, update, std::numeric_limits<std::int64_t>::max());
    }
    if (event.name != "evaluated") continue;
    auto const name = event.details.find("name");
    std::string const group = name != event.details.end() && name->is_string() ? name->get<std::string>() + " " : "";
    auto const values = event.details.find("values");
    if (values == event.details.end() || !values->is_object()) continue;
    for (auto const& [key, value] : values->items()) {
      auto const read = number_in(value);
      if (!read) continue;
      auto& kept = curves[group + key].kept;
      // A run that is killed and resumed evaluates an update again.
      while (!kept.empty() && kept.back().update >= event.update) kept.pop_back();
      kept.push_back({event.update, *read});
    }
  }
  return curves;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
