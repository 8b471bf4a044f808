// Draws curves as SVG to embed in a page: no script, colours from the page's style, readable at any width.
#pragma once

#include <cstdint>
#include <keel/diagnose/run_history.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// One run's curve in a plot. `style` is a CSS class of the page and sets the colour.
struct plotted_curve {
  std::string label;  ///< text in the legend; empty: no entry
  std::string style;
  run_curve const* curve;
};

/// A mark at an update.
struct plot_mark {
  std::int64_t update;
  std::string words;
  std::string style;
};

/// Returns a plot with a title; empty if no curve has a point. The value axis is logarithmic if all values are above 0 and span more than
/// two powers of ten. A value that is not finite is a dot at the upper edge. Curves with thousands of points are reduced to the extremes of
/// each column, so that every spike stays visible.
std::string plot(std::string_view title, std::string_view unit, std::vector<plotted_curve> const& curves,
                 std::vector<plot_mark> const& marks = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/plot.ipp>
#endif
