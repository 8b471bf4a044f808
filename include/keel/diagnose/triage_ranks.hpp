// The triage of several ranks that wait for each other, or that ended because they could not wait any longer.
#pragma once

#include <filesystem>
#include <keel/diagnose/rank_record.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

std::vector<triage_finding> triage_of_ranks(std::vector<rank_record> const& ranks);
/// Of how a run ended last, as each of its ranks says: `ends` are the messages of their last events, empty where a run did not fail.
std::vector<triage_finding> triage_of_ends(std::vector<std::string> const& ends);
/// Of all ranks of a run directory: rank 0's in it, the others' in rank-1 and so on.
std::vector<std::string> ends_of_ranks(std::filesystem::path const& run_directory);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/triage_ranks.ipp>
#endif
