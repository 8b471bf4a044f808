// The triage of ranks that wait for each other, or that ended because of a timeout.
#pragma once

#include <filesystem>
#include <keel/diagnose/rank_record.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

std::vector<triage_finding> triage_of_ranks(std::vector<rank_record> const& ranks);
/// Judges how a run ended. `ends`: the message of each rank's last event, empty if it did not fail.
std::vector<triage_finding> triage_of_ends(std::vector<std::string> const& ends);
/// Returns these messages for all ranks of a run directory: rank 0 is in the directory itself, the others in rank-1 and so on.
std::vector<std::string> ends_of_ranks(std::filesystem::path const& run_directory);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/triage_ranks.ipp>
#endif
