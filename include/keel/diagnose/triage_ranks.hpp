// The triage of several ranks that wait for each other.
#pragma once

#include <keel/diagnose/rank_record.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <vector>

namespace keel::detail {

std::vector<triage_finding> triage_of_ranks(std::vector<rank_record> const& ranks);

}  // namespace keel::detail

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/diagnose/triage_ranks.ipp>
#endif
