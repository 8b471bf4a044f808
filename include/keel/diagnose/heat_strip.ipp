// The bodies of heat_strip.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/diagnose/heat_strip.hpp>
#include <keel/diagnose/plot.hpp>
#include <limits>
#include <map>
#include <optional>

#include <keel/core/detail/body_begin.inc>

namespace keel {

KEEL_BODY std::string heat_strip(std::string_view title, std::vector<heat_row> const& rows) {
  constexpr std::size_t most_rows = 64;
  constexpr std::int64_t most_columns = 80;
  constexpr int left = 110;
  constexpr int width = 400;
  constexpr int height = 12;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  double low = std::numeric_limits<double>::infinity();
  double high = 0.0;
  for (heat_row const& row : rows) {
    for (curve_point const& point : row.curve->kept) {
      first = std::min(first, point.update);
      last = std::max(last, point.update);
      if (!std::isfinite(point.value) || point.value <= 0.0) continue;
      low = std::min(low, point.value);
      high = std::max(high, point.value);
    }
  }
  if (last < first) return {};
  std::int64_t const columns = std::min(most_columns, last - first + 1);
  auto const column_of = [&](std::int64_t update) { return (update - first) * columns / (last - first + 1); };
  double const span = high > low ? std::log(high) - std::log(low) : 1.0;
  // Columns that no look fell into belong to the one before them.
  std::map<std::int64_t, bool> looked;
  for (heat_row const& row : rows) {
    for (curve_point const& point : row.curve->kept) looked[column_of(point.update)] = true;
  }
  auto const x = [&](std::int64_t column) {
    return left +
           static_cast<int>(static_cast<double>(width - left) * static_cast<double>(column) / static_cast<double>(columns));
  };
  std::size_t const shown = std::min(most_rows, rows.size());
  int const bottom = static_cast<int>(shown) * height;
  std::string figure = "<figure><figcaption>" + escaped(title) + "</figcaption><svg viewBox=\"0 0 " + std::to_string(width) +
                       " " + std::to_string(bottom + 18) + "\" role=\"img\"><title>" + escaped(title) + "</title>";
  for (std::size_t i = 0; i < shown; ++i) {
    int const top = static_cast<int>(i) * height;
    std::string label = rows[i].label;
    constexpr std::size_t longest = 18;
    if (label.size() > longest) label = ".." + label.substr(label.size() - longest + 2);
    figure += "<text x=\"0\" y=\"" + std::to_string(top + height - 2) + "\"><title>" + escaped(rows[i].label) + "</title>" +
              escaped(label) + "</text>";
    std::map<std::int64_t, double> highest;
    for (curve_point const& point : rows[i].curve->kept) {
      auto const [place, is_new] = highest.emplace(column_of(point.update), point.value);
      // A value that is not finite stays: it is what a person must see.
      if (!is_new && std::isfinite(place->second) && !(point.value <= place->second)) place->second = point.value;
    }
    for (auto const& [column, value] : highest) {
      auto const next = looked.upper_bound(column);
      int const begin = x(column);
      int const end = next == looked.end() ? x(columns) : x(next->first);
      bool const is_finite = std::isfinite(value);
      double const shade = value > 0.0 && is_finite ? 0.08 + 0.92 * (std::log(value) - std::log(low)) / span : 0.5;
      figure += "<rect x=\"" + std::to_string(begin) + "\" y=\"" + std::to_string(top) + "\" width=\"" +
                std::to_string(std::max(end - begin, 1)) + "\" height=\"" + std::to_string(height - 1) + "\" class=\"" +
                (!is_finite    ? "bad"
                 : value > 0.0 ? "heat"
                               : "gone") +
                "\" fill-opacity=\"" + short_number(is_finite ? std::round(shade * 100) / 100 : 1.0) + "\"/>";
    }
  }
  figure += "<text x=\"" + std::to_string(left) + "\" y=\"" + std::to_string(bottom + 13) + "\">update " +
            std::to_string(first) + "</text><text x=\"" + std::to_string(width) + "\" y=\"" + std::to_string(bottom + 13) +
            "\" text-anchor=\"end\">" + std::to_string(last) + "</text></svg>";
  if (high > 0.0)
    figure += "<p class=\"legend\">pale " + short_number(low) + " to full " + short_number(high) + ", by logarithm</p>";
  if (shown < rows.size()) figure += "<p class=\"legend\">" + std::to_string(rows.size() - shown) + " more in layers.jsonl</p>";
  return figure + "</figure>";
}

}  // namespace keel

#include <keel/core/detail/body_end.inc>
