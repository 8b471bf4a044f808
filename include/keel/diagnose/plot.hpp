// Curves as SVG that stands in a page: no script, colours by the page's style, readable at any width.
#pragma once

#include <cstdint>
#include <keel/diagnose/run_history.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// One run's part of a plot. `style` is a class of the page: its colour.
struct plotted_curve {
  std::string label;  ///< in the legend; empty: not in it
  std::string style;
  run_curve const* curve;
};

/// Something that happened at an update.
struct plot_mark {
  std::int64_t update;
  std::string words;
  std::string style;
};

/// A figure with a title. The axis of values is logarithmic where all are above 0 and they span more than two powers of ten; a value
/// that is not finite is a dot at the upper edge. Thousands of points become the extremes of each column, so that no spike is lost.
/// Empty where no curve has a point.
std::string plot(std::string_view title, std::string_view unit, std::vector<plotted_curve> const& curves,
                 std::vector<plot_mark> const& marks = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/plot.ipp>
#endif
