// The triage of memory that runs out or grows.
#pragma once

#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <vector>

namespace keel::detail {

std::vector<triage_finding> triage_of_memory(run_history const& history);

}  // namespace keel::detail

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/diagnose/triage_memory.ipp>
#endif
