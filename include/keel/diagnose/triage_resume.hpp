// The triage of resumes that did not continue with the loaded state.
#pragma once

#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

std::vector<triage_finding> triage_of_resume(run_history const& history);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/triage_resume.ipp>
#endif
