// Draws a statistic of every layer over the run as rows of shades: which layer grew, vanished or became unstable, and when.
#pragma once

#include <cstdint>
#include <keel/diagnose/run_history.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

struct heat_row {
  std::string label;
  run_curve const* curve;
};

/// The range of values and updates of a strip.
struct heat_scale {
  std::int64_t first_update;
  std::int64_t last_update;  ///< if below the first update, the rows have no points
  double low;                ///< above 0
  double high;               ///< if 0, no value is above 0
};
heat_scale heat_scale_of(std::vector<heat_row> const& rows);

/// Returns SVG with a title; empty if no row has a point. Shades are on a logarithmic scale, from the lowest value above 0 to the highest
/// of all rows. A value that is not finite has the error colour. A column that covers several updates shows their highest value; of many
/// rows only the first 64 are shown. Strips of several runs are comparable if they share a scale.
std::string heat_strip(std::string_view title, std::vector<heat_row> const& rows, heat_scale const& scale);

/// Compares names with numbers by value: blocks.2 comes before blocks.10.
bool natural_less(std::string_view one, std::string_view other);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/heat_strip.ipp>
#endif
