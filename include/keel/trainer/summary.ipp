// Definitions for summary.hpp.
#pragma once

#include <keel/trainer/summary.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::string describe_outcome(outcome const& result) {
  if (result.is<result::finished>()) return "finished";
  if (result.is<result::gave_up>()) return std::string("gave up: ") + to_string(result.get<result::gave_up>().why);
  if (result.is<result::stopped>()) {
    int const signal = result.get<result::stopped>().signal;
    return signal == 0 ? "stopped by the program" : "stopped by signal " + std::to_string(signal);
  }
  return "still running";
}

KEEL_BODY std::string why_finished(bool length_is_reached, early_stop const& evaluations, bool by_program) {
  if (evaluations.is_over()) return evaluations.why();
  if (length_is_reached) return "the run reached its length";
  return by_program ? "the program's loop ended" : "the run completed its epochs, or its data ended";
}

KEEL_BODY std::string describe(memory_settings const& relief) {
  std::vector<std::string> all;
  if (relief.pieces > 1) all.push_back("micro-batches in " + std::to_string(relief.pieces) + " pieces");
  if (relief.recompute == recompute_kind::reentrant) all.push_back("reentrant recompute");
  if (relief.recompute == recompute_kind::non_reentrant) all.push_back("non-reentrant recompute");
  if (relief.attention == attention_kind::fused) all.push_back("fused attention");
  if (relief.offload) all.push_back("optimizer state offloaded");
  if (relief.quantized) all.push_back("base model in 8 bits");
  if (relief.length > 0) all.push_back("rows truncated to " + std::to_string(relief.length) + " tokens");
  std::string words;
  for (auto const& one : all) words += (words.empty() ? "" : ", ") + one;
  return words;
}

inline char const* place_in_update(memory::phase which) {
  constexpr char const* places[] = {"forward pass", "backward pass", "optimizer step"};
  return places[static_cast<std::size_t>(which)];
}

KEEL_BODY std::vector<std::pair<std::string, std::string>> summary_rows(std::string const& words, std::int64_t updates,
                                                                        std::int64_t skipped, double clipped,
                                                                        run_record const& record, std::int64_t tokens_now,
                                                                        double seconds, std::string const& directory,
                                                                        memory_settings const& relief,
                                                                        memory::timeline const& timeline) {
  std::vector<std::pair<std::string, std::string>> rows;
  rows.emplace_back("run", words);
  std::string const share = clipped > 0.0 ? detail::formatted(" (%.0f %% clipped)", 100.0 * clipped) : std::string();
  rows.emplace_back("updates", std::to_string(updates) + " applied" + share + ", " + std::to_string(skipped) + " skipped, " +
                                   std::to_string(record.rungs) + " memory rungs taken");
  rows.emplace_back("loss", detail::formatted("first update %.4f, last update %.4f", record.first_loss, record.last_loss));
  double const rate = seconds > 0.0 ? static_cast<double>(tokens_now) / seconds : 0.0;
  rows.emplace_back("data", detail::quantity(static_cast<double>(record.tokens)) + " tokens or rows, " +
                                detail::quantity(rate) + "/s since this process began training");
  rows.emplace_back("time since start", detail::duration(seconds));
  if (timeline.peak() > 0) {
    rows.emplace_back(
        "memory",
        detail::formatted("peak %.1f MiB, in the %s of update %lld; ", static_cast<double>(timeline.peak()) / (1024.0 * 1024.0),
                          place_in_update(timeline.peak_phase()), static_cast<long long>(timeline.peak_update())) +
            to_string(timeline.judge()));
  }
  if (auto const saved = describe(relief); !saved.empty()) rows.emplace_back("memory savings", saved);
  if (!directory.empty()) rows.emplace_back("run directory", directory);
  return rows;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
