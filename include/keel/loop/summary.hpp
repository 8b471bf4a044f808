// The words in which a run ends.
#pragma once

#include <cstdint>
#include <keel/loop/progress.hpp>
#include <keel/observe/console.hpp>
#include <keel/step/outcome.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel {

inline std::string ending(outcome const& result) {
  if (result.is<outcome::finished>()) return "finished";
  if (result.is<outcome::gave_up>()) return std::string("gave up: ") + to_string(result.get<outcome::gave_up>().why);
  if (result.is<outcome::stopped>()) {
    int const signal = result.get<outcome::stopped>().signal;
    return signal == 0 ? "stopped by the program" : "stopped by signal " + std::to_string(signal);
  }
  return "goes on";
}

/// Its name in events.jsonl.
inline char const* event_of_ending(outcome const& result) {
  if (result.is<outcome::finished>()) return "finished";
  return result.is<outcome::stopped>() ? "stopped" : "gave_up";
}

inline std::vector<std::pair<std::string, std::string>> summary_rows(std::string const& words, std::int64_t updates,
                                                                     std::int64_t skipped, double clipped,
                                                                     run_record const& record, std::int64_t tokens_now,
                                                                     double seconds, std::string const& directory) {
  std::vector<std::pair<std::string, std::string>> rows;
  rows.emplace_back("run", words);
  std::string const share = clipped > 0.0 ? detail::formatted(" (%.0f %% clipped)", 100.0 * clipped) : std::string();
  rows.emplace_back("updates", std::to_string(updates) + " applied" + share + ", " + std::to_string(skipped) + " skipped, " +
                                   std::to_string(record.rungs) + " rungs taken for memory");
  rows.emplace_back("loss",
                    detail::formatted("%.4f at the first update, %.4f at the last", record.first_loss, record.last_loss));
  double const rate = seconds > 0.0 ? static_cast<double>(tokens_now) / seconds : 0.0;
  rows.emplace_back("data", detail::quantity(static_cast<double>(record.tokens)) + " tokens or rows, " +
                                detail::quantity(rate) + "/s since this start");
  rows.emplace_back("time since this start", detail::duration(seconds));
  if (!directory.empty()) rows.emplace_back("kept in", directory);
  return rows;
}

}  // namespace keel
