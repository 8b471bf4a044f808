// A figure of every layer over the run, as rows of shades: which layer grew, died or began to shake, and when.
#pragma once

#include <keel/diagnose/run_history.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

struct heat_row {
  std::string label;
  run_curve const* curve;
};

/// SVG with a title. Shades are by the logarithm of the values, from the lowest that is above 0 to the highest of all rows; a value that is
/// not finite is in the colour of what is bad. Of many updates each column has the highest, of many rows the first 64 are shown. Empty where no row
/// has a point.
std::string heat_strip(std::string_view title, std::vector<heat_row> const& rows);

}  // namespace keel

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/diagnose/heat_strip.ipp>
#endif
