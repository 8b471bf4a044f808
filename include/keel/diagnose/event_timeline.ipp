// Definitions for event_timeline.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <keel/diagnose/event_timeline.hpp>
#include <keel/diagnose/page_text.hpp>
#include <keel/metrics/number_format.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string event_timeline(std::string_view title, std::vector<timeline_event> const& events,
                                     std::int64_t last_update) {
  if (events.empty()) return {};
  constexpr double left = 130.0;
  constexpr double right = 790.0;
  constexpr int height = 16;
  constexpr std::size_t max_rows = 40;
  std::vector<std::string> names;
  std::int64_t last = std::max<std::int64_t>(last_update, 1);
  for (timeline_event const& one : events) {
    if (names.size() < max_rows && std::find(names.begin(), names.end(), one.name) == names.end()) names.push_back(one.name);
    last = std::max(last, one.update);
  }
  int const bottom = static_cast<int>(names.size()) * height;
  std::string figure = "<figure><figcaption>" + escaped(title) + "</figcaption><svg class=\"timeline\" viewBox=\"0 0 800 " +
                       std::to_string(bottom + 18) + "\" role=\"img\"><title>" + escaped(title) + "</title>";
  for (std::size_t row = 0; row < names.size(); ++row) {
    int const middle = static_cast<int>(row) * height + height / 2;
    figure += "<line class=\"grid\" x1=\"" + std::to_string(static_cast<int>(left)) + "\" x2=\"" +
              std::to_string(static_cast<int>(right)) + "\" y1=\"" + std::to_string(middle) + "\" y2=\"" +
              std::to_string(middle) + "\"/><text x=\"0\" y=\"" + std::to_string(middle + 4) + "\">" + escaped(names[row]) +
              "</text>";
    for (timeline_event const& one : events) {
      if (one.name != names[row]) continue;
      double const share = static_cast<double>(std::max<std::int64_t>(one.update, 0)) / static_cast<double>(last);
      figure += "<circle class=\"happened " + one.style + "\" cx=\"" +
                detail::formatted("%.1f", left + share * (right - left)) + "\" cy=\"" + std::to_string(middle) +
                "\" r=\"4\"><title>update " + std::to_string(one.update) + ": " + escaped(one.words) + "</title></circle>";
    }
  }
  return figure + "<text x=\"" + std::to_string(static_cast<int>(left)) + "\" y=\"" + std::to_string(bottom + 13) +
         "\">update 0</text><text x=\"" + std::to_string(static_cast<int>(right)) + "\" y=\"" + std::to_string(bottom + 13) +
         "\" text-anchor=\"end\">" + std::to_string(last) + "</text></svg></figure>";
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
