// The triage of runs with non-finite updates.
#pragma once

#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

std::vector<triage_finding> triage_of_nonfinite(run_history const& history);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/triage_nonfinite.ipp>
#endif
