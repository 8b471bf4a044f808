// One update's figures, and the file that keeps them: metrics.jsonl, one JSON object a line. README.md in this folder lists
// the keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <keel/checkpoint/archive.hpp>
#include <keel/memory/phase_watch.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel {

struct update_metrics {
  std::int64_t update = 0;   ///< updates applied so far
  std::int64_t attempt = 0;  ///< updates so far, the skipped ones included
  std::int64_t epoch = 0;
  double loss = 0.0;
  std::optional<double> loss_zscore;
  double gradient_norm = 0.0;  ///< before clipping
  bool clipped = false;
  std::optional<double> gradient_norm_zscore;
  double learning_rate = 0.0;
  double loss_scale = 1.0;
  std::int64_t skipped = 0;     ///< in the whole run
  std::string skipped_because;  ///< empty for an update that was applied
  std::int64_t tokens = 0;      ///< of this update
  double milliseconds = 0.0;
  std::optional<memory::usage> memory;              ///< where memory is counted
  std::vector<std::pair<std::string, double>> own;  ///< what the program logged, in its order
};

/// An ordered object, so that lines are comparable as text.
inline nlohmann::ordered_json to_json(update_metrics const& m) {
  auto const optional = [](std::optional<double> const& value) {
    return value ? nlohmann::ordered_json(detail::number_to_json(*value)) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json line;
  line["update"] = m.update;
  line["attempt"] = m.attempt;
  line["epoch"] = m.epoch;
  line["loss"] = detail::number_to_json(m.loss);
  line["loss_zscore"] = optional(m.loss_zscore);
  line["gradient_norm"] = detail::number_to_json(m.gradient_norm);
  line["gradient_norm_zscore"] = optional(m.gradient_norm_zscore);
  line["clipped"] = m.clipped;
  line["lr"] = m.learning_rate;
  line["loss_scale"] = m.loss_scale;
  line["skipped"] = m.skipped;
  if (!m.skipped_because.empty()) line["skipped_because"] = m.skipped_because;
  line["tokens"] = m.tokens;
  if (m.memory) {
    auto& bytes = line["memory"];
    bytes["held"] = m.memory->held;
    bytes["reserved"] = m.memory->reserved;
    for (std::size_t i = 0; i < memory::phases; ++i) bytes[to_string(static_cast<memory::phase>(i))] = m.memory->peaks[i];
  }
  if (!m.own.empty()) {
    for (auto const& [name, value] : m.own) line["own"][name] = detail::number_to_json(value);
  }
  line["ms"] = m.milliseconds;
  return line;
}

}  // namespace keel
