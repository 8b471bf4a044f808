// Text about the end of a run, for the console and the record.
#pragma once

#include <cstdint>
#include <keel/core/outcome.hpp>
#include <keel/evaluation/early_stop.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/metrics/console.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_event_table.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Describes the outcome, such as "finished" or "stopped by signal 15".
std::string describe_outcome(outcome const& result);

/// Returns why the run finished. `by_program`: the program runs its own loop, which ended.
std::string why_finished(bool length_is_reached, early_stop const& evaluations, bool by_program);

/// Returns the event of events.jsonl for the outcome.
inline logged_event_id ending_event(outcome const& result) {
  if (result.is<result::finished>()) return "finished";
  if (result.is<result::stopped>()) return "stopped";
  return "gave_up";
}

/// Lists the memory-saving measures in effect; empty if there are none.
std::string describe(memory_settings const& relief);

/// Returns the label and text of each row of the console's summary. `words`: from describe_outcome(); `clipped`: fraction of updates;
/// `tokens_now`: tokens since this process began training.
std::vector<std::pair<std::string, std::string>> summary_rows(std::string const& words, std::int64_t updates,
                                                              std::int64_t skipped, double clipped, run_record const& record,
                                                              std::int64_t tokens_now, double seconds,
                                                              std::string const& directory, memory_settings const& relief,
                                                              memory::timeline const& timeline);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/summary.ipp>
#endif
