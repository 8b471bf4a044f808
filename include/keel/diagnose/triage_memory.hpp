// The triage of runs that run out of memory, or whose memory grows.
#pragma once

#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

std::vector<triage_finding> triage_of_memory(run_history const& history);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/triage_memory.ipp>
#endif
