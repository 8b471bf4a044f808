// A figure of every layer over the run, as rows of shades: which layer grew, died or began to shake, and when.
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

/// What the shades and the width of a strip stand for.
struct heat_scale {
  std::int64_t first_update;
  std::int64_t last_update;  ///< below the first: the rows have no point
  double low;                ///< above 0
  double high;               ///< 0: no value is above it
};
heat_scale heat_scale_of(std::vector<heat_row> const& rows);

/// SVG with a title. Shades are by the logarithm of the values, from the lowest that is above 0 to the highest of all rows; a value that is
/// not finite is in the colour of what is bad. Of many updates each column has the highest, of many rows the first 64 are shown. Empty where no row
/// has a point.
/// With a scale in common strips of several runs can be compared.
std::string heat_strip(std::string_view title, std::vector<heat_row> const& rows, heat_scale const& scale);

/// By the numbers in them where they have some: blocks.2 comes before blocks.10.
bool natural_less(std::string_view one, std::string_view other);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/heat_strip.ipp>
#endif
