// The bodies of update_metrics.hpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/checksum.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <nlohmann/json.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY nlohmann::ordered_json to_json(update_metrics const& m) {
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
  if (m.updates > 1) {
    line["clip_fraction"] = m.clip_fraction;
    line["updates"] = m.updates;
    line["applied"] = m.applied;
  }
  line["lr"] = m.learning_rate;
  line["loss_scale"] = m.loss_scale;
  line["skipped"] = m.skipped;
  if (!m.skipped_because.empty()) line["skipped_because"] = m.skipped_because;
  line["tokens"] = m.tokens;
  if (m.padding) line["padding"] = *m.padding;
  if (m.ignored_labels && *m.ignored_labels > 0.0) line["ignored_labels"] = *m.ignored_labels;
  if (m.batch != 0) line["batch"] = in_hexadecimal(m.batch);
  if (m.memory) {
    auto& bytes = line["memory"];
    bytes["held"] = m.memory->held;
    bytes["reserved"] = m.memory->reserved;
    for (std::size_t i = 0; i < memory::phases; ++i) bytes[to_string(static_cast<memory::phase>(i))] = m.memory->peaks[i];
    bytes["between"] = m.memory->between;
    if (m.memory->accumulated != 0) bytes["accumulated"] = m.memory->accumulated;
  }
  if (!m.own.empty()) {
    for (auto const& [name, value] : m.own) line["own"][name] = detail::number_to_json(value);
  }
  line["ms"] = m.milliseconds;
  // Behind it, so that what depends on a clock stands at the end of a line.
  auto const rounded = [](double milliseconds) { return std::round(milliseconds * 1e3) / 1e3; };
  auto& time = line["time"];
  for (std::size_t i = 0; i < run_phases; ++i) time[to_string(static_cast<run_phase>(i))] = rounded(m.times.spent[i]);
  time["total"] = rounded(m.times.total);
  if (m.gpu) {
    auto const add = [&](char const* name, std::optional<double> const& value) {
      if (value) line["gpu"][name] = *value;
    };
    add("memory_used", m.gpu->memory_used);
    add("memory_total", m.gpu->memory_total);
    add("temperature", m.gpu->temperature);
    add("utilization", m.gpu->utilization);
  }
  if (m.mfu) line["mfu"] = detail::number_to_json(*m.mfu);
  return line;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
