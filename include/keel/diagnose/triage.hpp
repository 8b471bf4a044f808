// Finds the family and the cause of a run's trouble, from its run directory alone, during or after the run.
//     keel::triage_result const found = keel::triage("runs/today");
//     std::fputs(keel::to_text(found).c_str(), stdout);
// Definite evidence, such as an event of the record, outranks the shapes of curves, which several causes share: in that case consider the
// first two causes and their evidence. The other verdicts are healthy, not_enough_data for a run that is too short to judge,
// and not_ended for one whose process disappeared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/diagnose/rank_record.hpp>
#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The verdict of a triage on a run.
enum class triage_verdict : unsigned char { healthy, not_enough_data, in_trouble, not_ended };

/// The result of a triage.
struct triage_result {
  triage_verdict verdict = triage_verdict::not_enough_data;  ///< the verdict
  std::vector<triage_finding> findings;  ///< the most likely cause first; empty unless the run is in trouble
  std::int64_t updates = 0;              ///< number of updates in the record
};

/// Judges a run directory. Throws file_error (E02) if it has no record of updates or ranks.
triage_result triage(std::filesystem::path const& run_directory);
/// Judges a run that was read before. Cannot tell whether a run without an end is still running. `ends`: error messages with which ranks
/// failed.
triage_result triage(run_history const& history, std::vector<rank_record> const& ranks = {},
                     std::vector<std::string> const& ends = {});

/// Returns the result as text for a terminal.
std::string to_text(triage_result const& found);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/triage.ipp>
#endif
