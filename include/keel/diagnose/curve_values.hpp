// Statistics of curves that several families of trouble are judged by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <keel/diagnose/run_history.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Returns the median of finite values; NaN if there are none.
double median_of(std::vector<double> values);

/// The overall shape of a curve: medians of its beginning and its end, and the lowest median in between.
struct curve_shape {
  std::size_t count = 0;  ///< number of finite values
  double start = 0.0;  ///< median of the first three to five values; the first value if it is higher or less than half of that
  double highest = 0.0;
  double settled = 0.0;        ///< median of the values between 30 % and 50 % of the run
  double last = 0.0;           ///< median of the last tenth, at least five values
  double lowest = 0.0;         ///< lowest median of a tenth of the run
  std::int64_t lowest_at = 0;  ///< the update in the middle of that tenth
  double noise = 0.0;          ///< median absolute change between consecutive values in the last half
  double rising = 0.0;         ///< share of the tenths in the last half whose median is above that of the tenth before

  /// Returns the decrease from start to end as a share of the start; 0 if the start is not positive.
  double fallen() const { return start > 0.0 ? (start - last) / start : 0.0; }
};
curve_shape shape_of(std::span<curve_point const> points);

/// Returns the points of the curve that were kept; empty if the run has no such curve.
std::span<curve_point const> points_of(run_history const& history, std::string const& key);
std::span<curve_point const> points_of(run_curve const& curve);

/// Returns the values at updates in (from, to].
std::vector<double> values_between(std::span<curve_point const> points, std::int64_t from, std::int64_t to);
std::vector<double> values_of(std::span<curve_point const> points);

/// Calls `visit(layer, points)` for each layer's curve of one statistic, such as "grad_norm".
template <class Visit>
void for_each_layer(run_history const& history, std::string_view figure, Visit const& visit) {
  for (auto const& [key, curve] : history.layers) {
    if (key.size() > figure.size() && key.starts_with(figure) && key[figure.size()] == '/' && !curve.kept.empty())
      visit(key.substr(figure.size() + 1), points_of(curve));
  }
}

/// Returns the first event of this name; nullptr if there is none.
run_event const* first_event(run_history const& history, std::string_view name);
run_event const* last_event(run_history const& history, std::string_view name);

/// Returns a string from an event's details; empty if it has none.
std::string text_of(run_event const& event, char const* key);
/// Returns a number from an event's details, or 0 if it has none.
double number_of(run_event const& event, char const* key);
/// Returns a number from an object in an event's details, or 0 if it has none: number_of(event, "memory", "held").
double number_of(run_event const& event, char const* object, char const* key);

/// Returns the results of evaluations, which the events contain: "validation loss", or "loss" for an evaluation without a name.
std::map<std::string, run_curve> evaluations_of(run_history const& history);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/curve_values.ipp>
#endif
