// Definitions for plot.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <keel/diagnose/page_text.hpp>
#include <keel/diagnose/plot.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Maps values to positions in a plot of 400 by 210 units.
struct plot_frame {
  static constexpr double left = 46;
  static constexpr double right = 382;
  static constexpr double top = 12;
  static constexpr double bottom = 186;
  double first = 0;  ///< update at the left edge
  double last = 1;
  double low = 0;  ///< value at the lower edge, or its logarithm on a logarithmic axis
  double high = 1;
  bool is_log = false;

  double x(double update) const { return left + (right - left) * (update - first) / (last - first); }
  double y(double value) const { return bottom - (bottom - top) * ((is_log ? std::log10(value) : value) - low) / (high - low); }
};

KEEL_BODY std::string svg_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `least`.
KEEL_BODY double round_step(double least) {
  double const power = std::pow(10.0, std::floor(std::log10(least)));
  for (double const factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

KEEL_BODY std::vector<double> ticks_of(double low, double high, int most) {
  std::vector<double> all;
  double const step = round_step((high - low) / most);
  for (double tick = std::ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9 && all.size() < 20; tick += step)
    all.push_back(std::abs(tick) < step * 1e-6 ? 0.0 : tick);
  return all;
}

template <class Each>
void for_each_point(std::vector<plotted_curve> const& curves, Each const& each) {
  for (auto const& one : curves) {
    for (auto const& point : one.curve->kept) each(point);
    for (auto const& future : one.curve->abandoned) {
      for (auto const& point : future) each(point);
    }
  }
}

/// Returns true for values that are finite and small enough that the range of an axis does not overflow.
KEEL_BODY bool can_be_drawn(double value) { return std::abs(value) <= std::numeric_limits<double>::max() / 16; }

KEEL_BODY plot_frame frame_of(std::vector<plotted_curve> const& curves) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  plot_frame frame;
  double low = infinity;
  double high = -infinity;
  double first = infinity;
  double last = -infinity;
  for_each_point(curves, [&](curve_point const& point) {
    first = std::min(first, static_cast<double>(point.update));
    last = std::max(last, static_cast<double>(point.update));
    if (!can_be_drawn(point.value)) return;
    low = std::min(low, point.value);
    high = std::max(high, point.value);
  });
  frame.first = first;
  // Above 2^53, adding 1 would not change the value.
  frame.last = last > first ? last : first + std::max(1.0, std::abs(first) * 1e-9);
  if (!(low <= high)) return frame;
  frame.is_log = low > 0 && high / low > 100;
  if (frame.is_log) {
    low = std::log10(low);
    high = std::log10(high);
  }
  // Computed from halves, because the full range of doubles overflows.
  double const half = high / 2 - low / 2;
  double const margin = half > 0 ? half * 0.1 : std::max(std::abs(high) * 0.05, 1e-9);
  frame.low = low - margin;
  frame.high = high + margin;
  return frame;
}

/// Reduces the points of a line: of the points in one column keeps the first, the lowest, the highest and the last.
KEEL_BODY std::vector<curve_point> thinned(std::vector<curve_point> const& points, plot_frame const& frame) {
  constexpr std::size_t columns = 336;
  if (points.size() <= 4 * columns) return points;
  std::vector<curve_point> kept;
  for (std::size_t begin = 0; begin < points.size();) {
    auto const column = static_cast<long>(frame.x(static_cast<double>(points[begin].update)));
    std::size_t const none = points.size();
    std::size_t end = begin;
    std::size_t lowest = none;
    std::size_t highest = none;
    std::size_t wrong = none;
    for (; end < points.size() && static_cast<long>(frame.x(static_cast<double>(points[end].update))) == column; ++end) {
      double const value = points[end].value;
      if (!can_be_drawn(value)) {
        wrong = end;
        continue;
      }
      if (lowest == none || value < points[lowest].value) lowest = end;
      if (highest == none || value > points[highest].value) highest = end;
    }
    std::vector<std::size_t> chosen{begin, end - 1};
    for (std::size_t const one : {lowest, highest, wrong}) {
      if (one != none) chosen.push_back(one);
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    for (std::size_t const i : chosen) kept.push_back(points[i]);
    begin = end;
  }
  return kept;
}

KEEL_BODY std::string line_of(std::vector<curve_point> const& points, plot_frame const& frame, std::string const& style) {
  std::string path;
  std::string dots;
  auto const all = thinned(points, frame);
  // A segment of one point has no length.
  std::size_t in_part = 0;
  auto const end_part = [&] {
    if (in_part == 1) path += "h0.1";
    in_part = 0;
  };
  for (auto const& point : all) {
    double const x = frame.x(static_cast<double>(point.update));
    if (!can_be_drawn(point.value)) {
      end_part();
      dots += "<circle class=\"bad\" cx=\"" + svg_number(x) + "\" cy=\"" + svg_number(plot_frame::top) + "\" r=\"3\"><title>" +
              std::to_string(point.update) + ": " +
              (std::isnan(point.value)   ? "NaN"
               : std::isinf(point.value) ? "infinite"
                                         : short_number(point.value)) +
              "</title></circle>";
      continue;
    }
    path += (in_part > 0 ? "L" : "M") + svg_number(x) + " " + svg_number(frame.y(point.value));
    ++in_part;
  }
  end_part();
  std::string drawn;
  if (!path.empty()) drawn = "<path class=\"" + style + "\" d=\"" + path + "\"/>";
  return drawn + dots;
}

KEEL_BODY std::string axes_of(plot_frame const& frame) {
  std::string drawn;
  auto const number = [](double value) { return svg_number(value); };
  for (double const tick : ticks_of(frame.low, frame.high, 5)) {
    if (frame.is_log && tick != std::floor(tick)) continue;
    double const y =
        plot_frame::bottom - (plot_frame::bottom - plot_frame::top) * (tick - frame.low) / (frame.high - frame.low);
    drawn += "<line class=\"grid\" x1=\"" + number(plot_frame::left) + "\" x2=\"" + number(plot_frame::right) + "\" y1=\"" +
             number(y) + "\" y2=\"" + number(y) + "\"/><text x=\"" + number(plot_frame::left - 4) + "\" y=\"" + number(y + 4) +
             "\" text-anchor=\"end\">" + short_number(frame.is_log ? std::pow(10.0, tick) : tick) + "</text>";
  }
  for (double const tick : ticks_of(frame.first, frame.last, 4)) {
    if (tick != std::floor(tick)) continue;
    drawn += "<text x=\"" + number(frame.x(tick)) + "\" y=\"" + number(plot_frame::bottom + 16) + "\" text-anchor=\"middle\">" +
             short_number(tick) + "</text>";
  }
  return drawn;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string plot(std::string_view title, std::string_view unit, std::vector<plotted_curve> const& curves,
                           std::vector<plot_mark> const& marks) {
  bool has_points = false;
  detail::for_each_point(curves, [&](curve_point const&) { has_points = true; });
  if (!has_points) return {};
  detail::plot_frame const frame = detail::frame_of(curves);
  std::string const label = escaped(title) + (unit.empty() ? "" : ", " + escaped(unit)) + (frame.is_log ? ", logarithmic" : "");
  std::string page = "<figure><figcaption>" + label + "</figcaption><svg viewBox=\"0 0 400 210\" role=\"img\" aria-label=\"" +
                     label + "\">" + detail::axes_of(frame);
  for (auto const& mark : marks) {
    auto const at = static_cast<double>(mark.update);
    if (at < frame.first || at > frame.last) continue;
    std::string const x = detail::svg_number(frame.x(at));
    page += "<line class=\"mark " + mark.style + "\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"12\" y2=\"186\"><title>" +
            escaped(mark.words) + "</title></line>";
  }
  // Abandoned points are drawn first, so that the kept ones cover them.
  for (auto const& one : curves) {
    for (auto const& future : one.curve->abandoned) page += detail::line_of(future, frame, "curve abandoned");
  }
  for (auto const& one : curves) page += detail::line_of(one.curve->kept, frame, "curve " + one.style);
  page += "</svg>";
  auto const named = [](plotted_curve const& one) { return !one.label.empty(); };
  if (std::count_if(curves.begin(), curves.end(), named) > 1) {
    page += "<p class=\"legend\">";
    for (auto const& one : curves) {
      if (named(one)) page += "<span class=\"" + one.style + "\">" + escaped(one.label) + "</span> ";
    }
    page += "</p>";
  }
  return page + "</figure>\n";
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
