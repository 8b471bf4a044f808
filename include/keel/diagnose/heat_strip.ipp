// Definitions for heat_strip.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/diagnose/heat_strip.hpp>
#include <keel/diagnose/page_text.hpp>
#include <limits>
#include <map>
#include <optional>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY heat_scale heat_scale_of(std::vector<heat_row> const& rows) {
  heat_scale scale{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(),
                   std::numeric_limits<double>::infinity(), 0.0};
  for (heat_row const& row : rows) {
    for (curve_point const& point : row.curve->kept) {
      scale.first_update = std::min(scale.first_update, point.update);
      scale.last_update = std::max(scale.last_update, point.update);
      if (!std::isfinite(point.value) || point.value <= 0.0) continue;
      scale.low = std::min(scale.low, point.value);
      scale.high = std::max(scale.high, point.value);
    }
  }
  return scale;
}

KEEL_BODY bool natural_less(std::string_view one, std::string_view other) {
  auto const is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
  while (!one.empty() && !other.empty()) {
    if (is_digit(one.front()) && is_digit(other.front())) {
      auto const take = [&](std::string_view& from) {
        from.remove_prefix(std::min(from.find_first_not_of('0'), from.size()));
        auto const end = std::find_if_not(from.begin(), from.end(), is_digit);
        std::string_view const number = from.substr(0, static_cast<std::size_t>(end - from.begin()));
        from.remove_prefix(number.size());
        return number;
      };
      std::string_view const first = take(one);
      std::string_view const second = take(other);
      if (first.size() != second.size()) return first.size() < second.size();
      if (first != second) return first < second;
      continue;
    }
    if (one.front() != other.front()) return one.front() < other.front();
    one.remove_prefix(1);
    other.remove_prefix(1);
  }
  return one.empty() && !other.empty();
}

KEEL_BODY std::string heat_strip(std::string_view title, std::vector<heat_row> const& rows, heat_scale const& scale) {
  constexpr std::size_t max_rows = 64;
  constexpr std::int64_t max_columns = 80;
  constexpr int left = 110;
  constexpr int width = 400;
  constexpr int height = 12;
  auto const [first, last, low, high] = scale;
  if (rows.empty() || last < first) return {};
  std::int64_t const columns = std::min(max_columns, last - first + 1);
  auto const column_of = [&, begin = first, length = last - first + 1](std::int64_t update) {
    return (update - begin) * columns / length;
  };
  double const span = high > low ? std::log(high) - std::log(low) : 1.0;
  // Columns without a measurement repeat the column before them.
  std::map<std::int64_t, bool> looked;
  for (heat_row const& row : rows) {
    for (curve_point const& point : row.curve->kept) looked[column_of(point.update)] = true;
  }
  auto const x = [&](std::int64_t column) {
    return left +
           static_cast<int>(static_cast<double>(width - left) * static_cast<double>(column) / static_cast<double>(columns));
  };
  std::size_t const shown = std::min(max_rows, rows.size());
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
      // Keep a non-finite value: it must remain visible.
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

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
