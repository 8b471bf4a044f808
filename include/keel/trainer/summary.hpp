// The words in which a run ends.
#pragma once

#include <cstdint>
#include <keel/core/outcome.hpp>
#include <keel/evaluation/early_stop.hpp>
#include <keel/memory/timeline.hpp>
#include <keel/metrics/console.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/trainer/progress.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

std::string ending(outcome const& result);

/// Why a run that is finished is; `by_program`: its own loop ended.
std::string why_finished(bool length_is_reached, early_stop const& evaluations, bool by_program);

/// Its name in events.jsonl.
inline char const* ending_event_name(outcome const& result) {
  if (result.is<result::finished>()) return "finished";
  return result.is<result::stopped>() ? "stopped" : "gave_up";
}

/// What a run does for memory, in words; empty where it does nothing.
std::string describe(memory_settings const& relief);

std::vector<std::pair<std::string, std::string>> summary_rows(std::string const& words, std::int64_t updates,
                                                              std::int64_t skipped, double clipped, run_record const& record,
                                                              std::int64_t tokens_now, double seconds,
                                                              std::string const& directory, memory_settings const& relief,
                                                              memory::timeline const& timeline);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/summary.ipp>
#endif
