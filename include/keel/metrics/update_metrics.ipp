// Definitions for update_metrics.hpp.
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
  nlohmann::ordered_json line;
  auto const add_measured = [&](bool of_clock) {
    m.measured.for_each([&]<class Metric>(Metric, std::optional<double> const& value) {
      if (Metric::depends_on_clock != of_clock) return;
      if (auto const shown = shown_value<Metric>(value)) {
        line[Metric::key] = detail::number_to_json(*shown);
      } else if (Metric::is_null_if_unknown) {
        line[Metric::key] = nullptr;
      }
    });
  };
  line["update"] = m.update;
  line["attempt"] = m.attempt;
  line["epoch"] = m.epoch;
  line["loss"] = detail::number_to_json(m.loss);
  line["gradient_norm"] = detail::number_to_json(m.gradient_norm);
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
  add_measured(false);
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
  // At the end of the line, because these values depend on a clock.
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
  add_measured(true);
  return line;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
