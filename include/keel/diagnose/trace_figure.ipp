// Definitions for trace_figure.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/diagnose/page_text.hpp>
#include <keel/diagnose/trace_figure.hpp>
#include <keel/metrics/number_format.hpp>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// In microseconds.
struct traced_range {
  double begin;
  double end;
  std::string name;
  std::string kind;
};

/// Phases are sequential and have one lane; each other track has a lane per nesting level.
struct trace_track {
  std::string name;
  std::vector<traced_range> ranges;
};

inline constexpr std::size_t max_depth = 8;

/// Returns the tracks of a trace. Ignores invalid events, because another program may have written the trace.
KEEL_BODY std::vector<trace_track> tracks_of(nlohmann::json const& trace) {
  std::map<std::int64_t, trace_track> found;
  trace_track phases{"phases", {}};
  auto const events = trace.is_object() ? trace.find("traceEvents") : trace.end();
  if (!trace.is_object() || events == trace.end() || !events->is_array()) return {};
  auto const text = [](nlohmann::json const& event, char const* key) {
    auto const one = event.find(key);
    return one != event.end() && one->is_string() ? one->get<std::string>() : std::string();
  };
  auto const number = [](nlohmann::json const& event, char const* key) {
    auto const one = event.find(key);
    return one != event.end() && one->is_number() ? one->get<double>() : std::numeric_limits<double>::quiet_NaN();
  };
  for (nlohmann::json const& event : *events) {
    if (!event.is_object()) continue;
    auto const thread = event.find("tid");
    if (thread == event.end() || !thread->is_number_integer()) continue;
    auto const id = thread->get<std::int64_t>();
    std::string const what = text(event, "ph");
    if (what == "M" && text(event, "name") == "thread_name") {
      auto const arguments = event.find("args");
      if (arguments != event.end() && arguments->is_object()) found[id].name = text(*arguments, "name");
    }
    double const begin = number(event, "ts");
    double const length = number(event, "dur");
    if (what != "X" || !std::isfinite(begin) || !std::isfinite(begin + length) || length < 0.0) continue;
    traced_range one{begin, begin + length, text(event, "name"), text(event, "cat")};
    (one.kind == "phase" ? phases : found[id]).ranges.push_back(std::move(one));
  }
  std::vector<trace_track> all;
  if (!phases.ranges.empty()) all.push_back(std::move(phases));
  for (auto& [id, track] : found) {
    if (track.name.empty()) track.name = "thread " + std::to_string(id);
    if (!track.ranges.empty()) all.push_back(std::move(track));
  }
  for (trace_track& track : all) {
    std::stable_sort(track.ranges.begin(), track.ranges.end(), [](traced_range const& a, traced_range const& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  }
  return all;
}

KEEL_BODY std::string style_of_kind(traced_range const& range) {
  constexpr std::array<std::pair<std::string_view, char const*>, 9> styles{{{"matrix products", "s0"},
                                                                            {"memory operations", "s1"},
                                                                            {"communication", "s3"},
                                                                            {"data", "s1"},
                                                                            {"forward", "s0"},
                                                                            {"backward", "s2"},
                                                                            {"update", "s3"},
                                                                            {"saving", "s4"},
                                                                            {"evaluating", "s5"}}};
  for (auto const& [name, style] : styles) {
    if ((range.kind == "phase" ? range.name : range.kind) == name) return style;
  }
  return "s7";
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string trace_figure(std::string_view title, nlohmann::json const& trace) {
  constexpr double width = 1000.0;
  constexpr int height = 13;
  constexpr double thinnest = 0.5;
  constexpr double least_for_words = 60.0;
  constexpr std::size_t max_shown = 20'000;
  auto const tracks = detail::tracks_of(trace);
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  for (auto const& track : tracks) {
    for (auto const& range : track.ranges) {
      first = std::min(first, range.begin);
      last = std::max(last, range.end);
    }
  }
  if (!(last > first)) return {};
  auto const x = [&](double at) { return (at - first) / (last - first) * width; };
  auto const words = [](double value) { return detail::formatted("%.1f", value); };
  std::string drawn;
  std::size_t shown = 0;
  int top = 0;
  for (auto const& track : tracks) {
    drawn += "<text x=\"0\" y=\"" + std::to_string(top + height - 3) + "\">" + escaped(track.name) + "</text>";
    top += height;
    std::vector<double> open;  // ends of the ranges that contain the next one
    std::array<double, detail::max_depth> drawn_to;
    drawn_to.fill(-1.0);
    std::size_t lanes = 0;
    for (auto const& range : track.ranges) {
      while (!open.empty() && open.back() <= range.begin) open.pop_back();
      std::size_t const depth = open.size();
      open.push_back(range.end);
      if (depth >= detail::max_depth || shown == max_shown) continue;
      double const left = x(range.begin);
      double const right = std::max(x(range.end), left + thinnest);
      if (right <= drawn_to[depth] + thinnest) continue;
      drawn_to[depth] = right;
      lanes = std::max(lanes, depth + 1);
      ++shown;
      int const y = top + static_cast<int>(depth) * height;
      drawn += "<rect x=\"" + words(left) + "\" y=\"" + std::to_string(y) + "\" width=\"" + words(right - left) +
               "\" height=\"" + std::to_string(height - 1) + "\" class=\"range " + detail::style_of_kind(range) + "\">";
      drawn += "<title>" + escaped(range.name) + ", " + detail::formatted("%.3f ms", (range.end - range.begin) / 1e3) +
               "</title></rect>";
      if (right - left >= least_for_words) {
        auto const letters = static_cast<std::size_t>((right - left) / 7.0);
        drawn += "<text class=\"inside\" x=\"" + words(left + 3.0) + "\" y=\"" + std::to_string(y + height - 3) + "\">" +
                 escaped(range.name.substr(0, letters)) + "</text>";
      }
    }
    top += static_cast<int>(lanes) * height + 4;
  }
  std::string figure = "<figure><figcaption>" + escaped(title) +
                       "</figcaption><div class=\"scroll\"><svg class=\"trace\" viewBox=\"0 0 1000 " +
                       std::to_string(top + 16) + "\" role=\"img\"><title>" + escaped(title) + "</title>" + drawn;
  figure += "<text x=\"0\" y=\"" + std::to_string(top + 12) + "\">0 ms</text><text x=\"1000\" y=\"" + std::to_string(top + 12) +
            "\" text-anchor=\"end\">" + detail::formatted("%.1f ms", (last - first) / 1e3) + "</text></svg></div>";
  figure +=
      "<p class=\"legend\">Phases, and of each thread: <span class=\"s0\">matrix products</span>, <span class=\"s1\">memory "
      "operations</span>, <span class=\"s3\">communication</span>, <span class=\"s7\">other</span>.</p></figure>";
  return figure;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
