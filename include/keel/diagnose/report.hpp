// A run as one page for a browser: the verdict, what happened when, curves with abandoned futures greyed, memory by phase, the recipe
// and the record itself. One file without a script and without a request, readable on a phone, in print, in light and dark, years later.
#pragma once

#include <keel/diagnose/run_history.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// HTML of one run, or of several over each other. Records of more than `max_data` bytes are left out of the page, which says so.
std::string report_page(std::vector<run_history> const& runs, std::size_t max_data = 8 << 20);

/// How a run stands, in one sentence.
std::string verdict_of(run_history const& run);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/report.ipp>
#endif
