// A report on runs as a single HTML page: verdict, timeline of events, curves with abandoned updates greyed out, memory by phase, recipe,
// and the record itself. The file contains no script and loads nothing, and is readable on a phone, in print, in light and dark mode.
#pragma once

#include <keel/diagnose/run_history.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Returns the HTML page of one run, or of several for comparison. Omits records larger than `max_data` bytes and says so in the page.
std::string report_page(std::vector<run_history> const& runs, std::size_t max_data = 8 << 20);

/// Returns the state of a run in one sentence.
std::string verdict_of(run_history const& run);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/report.ipp>
#endif
