// Figures of a curve that several families of trouble are judged by.
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

/// Of finite values; NaN where there is none.
double median_of(std::vector<double> values);

/// How a curve went as a whole: medians of its beginning and its end, and the lowest between them.
struct curve_shape {
  std::size_t count = 0;  ///< finite values
  double start = 0.0;     ///< median of the first three to five values, or the first where that is higher, or far lower
  double highest = 0.0;
  double settled = 0.0;        ///< median of what lies between 30 % and half of the run
  double last = 0.0;           ///< median of the last tenth, five values at least
  double lowest = 0.0;         ///< of the medians of its tenths
  std::int64_t lowest_at = 0;  ///< the update in the middle of that tenth
  double noise = 0.0;          ///< median change from one value to the next in its last half
  double rising = 0.0;         ///< share of its last half's tenths that are above the one before

  /// The share of the start that the end is lower; 0 where the start is not positive.
  double fallen() const { return start > 0.0 ? (start - last) / start : 0.0; }
};
curve_shape shape_of(std::span<curve_point const> points);

/// The curve's kept points; empty where there is none.
std::span<curve_point const> points_of(run_history const& history, std::string const& key);
std::span<curve_point const> points_of(run_curve const& curve);

/// Values of points of updates in (from, to].
std::vector<double> values_between(std::span<curve_point const> points, std::int64_t from, std::int64_t to);
std::vector<double> values_of(std::span<curve_point const> points);

/// Calls `visit(layer, points)` for the figure of each layer, as "grad_norm".
template <class Visit>
void for_each_layer(run_history const& history, std::string_view figure, Visit const& visit) {
  for (auto const& [key, curve] : history.layers) {
    if (key.size() > figure.size() && key.starts_with(figure) && key[figure.size()] == '/' && !curve.kept.empty())
      visit(key.substr(figure.size() + 1), points_of(curve));
  }
}

/// The first event of that name; null where there is none.
run_event const* first_event(run_history const& history, std::string_view name);
run_event const* last_event(run_history const& history, std::string_view name);

/// A text of an event's details; empty where it has none.
std::string text_of(run_event const& event, char const* key);
/// A number of an event's details, 0 where there is none.
double number_of(run_event const& event, char const* key);
/// A number in an object of an event's details, 0 where there is none: number_of(event, "memory", "held").
double number_of(run_event const& event, char const* object, char const* key);

/// What evaluations found, which stands in the events: "validation loss", or "loss" of one without a name.
std::map<std::string, run_curve> evaluations_of(run_history const& history);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/curve_values.ipp>
#endif
