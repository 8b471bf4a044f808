// Draws a timeline of a run's events: one row of dots per kind of event, over the updates.
#pragma once

#include <cstdint>
#include <keel/diagnose/run_history.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

/// `style` is a CSS class of the page: "back", "warn" or "plain".
struct timeline_event {
  std::string name;
  std::int64_t update = 0;
  std::string words;
  std::string style;
};

/// Returns SVG with a title; empty without events.
std::string event_timeline(std::string_view title, std::vector<timeline_event> const& events, std::int64_t last_update);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/event_timeline.ipp>
#endif
