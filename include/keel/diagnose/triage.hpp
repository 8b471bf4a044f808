// Which family of trouble a run is in, and which cause: judged from its run directory alone, while it runs or after its end.
//     keel::triage_result const found = keel::triage("runs/today");
//     std::fputs(keel::to_text(found).c_str(), stdout);
// Hard evidence, such as an event of the record, comes before curves, whose shapes several causes share: then the first two causes are
// worth a look, and the evidence says why. A run without trouble is healthy; one that is too short to say is said to be, and so is one whose
// process is gone and left no end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/diagnose/rank_record.hpp>
#include <keel/diagnose/run_history.hpp>
#include <keel/diagnose/triage_finding.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What a triage says of a run as a whole.
enum class triage_verdict : unsigned char { healthy, not_enough_data, in_trouble, not_ended };

/// What a run directory says of its run.
struct triage_result {
  triage_verdict verdict = triage_verdict::not_enough_data;  ///< of the run
  std::vector<triage_finding> findings;                      ///< the likeliest first; empty unless in trouble
  std::int64_t updates = 0;                                  ///< that the record has
};

/// Throws file_error (E02) for a directory without a record, neither of updates nor of ranks.
triage_result triage(std::filesystem::path const& run_directory);
/// It cannot see whether a run without an end still runs. `ends`: the words with which ranks of it failed.
triage_result triage(run_history const& history, std::vector<rank_record> const& ranks = {},
                     std::vector<std::string> const& ends = {});

/// For a terminal.
std::string to_text(triage_result const& found);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/triage.ipp>
#endif
