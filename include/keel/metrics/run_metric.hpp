// The metrics that sinks and alarms receive from a run, each a type with its name, unit, reductions over micro-batches, updates and
// ranks, and the cost of reading it. These here are computed from a line of the record; the lines' measured values
// (measured_metric.hpp) follow them. README.md in this folder lists both.
#pragma once

#include <cstdint>
#include <keel/collective/world.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/sink.hpp>
#include <keel/metrics/unit.hpp>
#include <keel/metrics/update_metrics.hpp>
#include <optional>
#include <string_view>
#include <vector>

namespace keel::inline KEEL_MODE {

namespace metrics {

// `of` returns the value in a line of the record, or nullopt if the line has none, as after updates that were all skipped.

/// Weighted mean loss. Without a value if all updates of the line were skipped.
struct loss : run_metric<units::one, reduce::mean, over_updates::mean, reduce::mean, reading_cost::with_the_update> {
  static constexpr char const* name = "train/loss";
  static std::optional<double> of(update_metrics const& m) { return m.applied > 0 ? std::optional(m.loss) : std::nullopt; }
};
/// Joint L2 norm before clipping. Without a value as the loss.
struct gradient_norm : run_metric<units::one, reduce::mean, over_updates::mean, reduce::max, reading_cost::with_the_update> {
  static constexpr char const* name = "train/grad_norm";
  static std::optional<double> of(update_metrics const& m) {
    return m.applied > 0 ? std::optional(m.gradient_norm) : std::nullopt;
  }
};
/// The learning rate of the first parameter group.
struct learning_rate : run_metric<units::one, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "train/learning_rate";
  static std::optional<double> of(update_metrics const& m) {
    return m.applied > 0 ? std::optional(m.learning_rate) : std::nullopt;
  }
};
/// The current epoch of the data, from 0.
struct epoch : run_metric<units::epochs, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "train/epoch";
  static std::optional<double> of(update_metrics const& m) { return static_cast<double>(m.epoch); }
};
/// Tokens per second over all ranks; rows if batches do not consist of tokens.
struct tokens_per_second
    : run_metric<units::tokens_per_second, reduce::sum, over_updates::mean, reduce::sum, reading_cost::none> {
  static constexpr char const* name = "train/tokens_per_sec";
  static std::optional<double> of(update_metrics const& m) {
    return m.milliseconds > 0.0 ? std::optional(static_cast<double>(m.tokens) * 1e3 / m.milliseconds) : std::nullopt;
  }
};
/// The time of an update on the slowest rank.
struct update_time : run_metric<units::seconds, reduce::sum, over_updates::mean, reduce::max, reading_cost::none> {
  static constexpr char const* name = "train/step_time_sec";
  static std::optional<double> of(update_metrics const& m) { return m.milliseconds / 1e3 / static_cast<double>(m.updates); }
};
/// Updates skipped so far.
struct skipped : run_metric<units::updates, reduce::max, over_updates::last, reduce::max, reading_cost::with_the_update> {
  static constexpr char const* name = "stability/skipped";
  static std::optional<double> of(update_metrics const& m) { return static_cast<double>(m.skipped); }
};
/// Share of the applied updates that the clip policy changed.
struct clip_fraction : run_metric<units::share, reduce::max, over_updates::mean, reduce::max, reading_cost::with_the_update> {
  static constexpr char const* name = "stability/clip_fraction";
  static std::optional<double> of(update_metrics const& m) { return m.clip_fraction; }
};
/// The loss scale.
struct loss_scale : run_metric<units::one, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "stability/loss_scale";
  static std::optional<double> of(update_metrics const& m) { return m.loss_scale; }
};
/// Number of rollbacks of the run.
struct rollbacks : run_metric<units::one, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "stability/rollbacks";
  static std::optional<double> of(update_metrics const& m) { return static_cast<double>(m.rollbacks); }
};
/// Number of rungs of the out-of-memory ladder taken.
struct oom_rung : run_metric<units::one, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "stability/oom_rung";
  static std::optional<double> of(update_metrics const& m) { return static_cast<double>(m.rungs); }
};
/// Share of the time spent waiting for data.
struct data_wait : run_metric<units::share, reduce::sum, over_updates::mean, reduce::max, reading_cost::none> {
  static constexpr char const* name = "stability/data_wait";
  static std::optional<double> of(update_metrics const& m) {
    return m.times.total > 0.0 ? std::optional(m.times.share(run_phase::data)) : std::nullopt;
  }
};
/// The time of one phase.
template <run_phase Phase>
struct time_of : run_metric<units::seconds, reduce::sum, over_updates::mean, reduce::max, reading_cost::none> {
  static std::optional<double> of(update_metrics const& m) { return m.times.of(Phase) / 1e3 / static_cast<double>(m.updates); }
};
/// Time from the end of one micro-batch to the next one.
struct time_of_data : time_of<run_phase::data> {
  static constexpr char const* name = "time/data";
};
/// Time of forward passes.
struct time_of_forward : time_of<run_phase::forward> {
  static constexpr char const* name = "time/forward";
};
/// Time of backward passes.
struct time_of_backward : time_of<run_phase::backward> {
  static constexpr char const* name = "time/backward";
};
/// Time of checks, clipping and the optimizer's step.
struct time_of_update : time_of<run_phase::update> {
  static constexpr char const* name = "time/update";
};
/// Time that training waited for saves.
struct time_of_saving : time_of<run_phase::saving> {
  static constexpr char const* name = "time/saving";
};
/// Time of evaluations.
struct time_of_evaluating : time_of<run_phase::evaluating> {
  static constexpr char const* name = "time/evaluating";
};
/// Peak memory over forward pass, backward pass and update.
struct max_allocated : run_metric<units::bytes, reduce::max, over_updates::max, reduce::max, reading_cost::none> {
  static constexpr char const* name = "memory/max_alloc";
  static std::optional<double> of(update_metrics const& m) {
    return m.memory ? std::optional(static_cast<double>(m.memory->peak())) : std::nullopt;
  }
};
/// Memory reserved from the system at the end of the update.
struct max_reserved : run_metric<units::bytes, reduce::max, over_updates::max, reduce::max, reading_cost::none> {
  static constexpr char const* name = "memory/max_reserved";
  static std::optional<double> of(update_metrics const& m) {
    return m.memory ? std::optional(static_cast<double>(m.memory->reserved)) : std::nullopt;
  }
};

/// Memory that tensors hold on a GPU, as LibTorch's allocator counts it.
struct gpu_allocated : run_metric<units::gigabytes, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "gpu/allocated_gb";
  static std::optional<double> of(update_metrics const& m) { return of_gpu(m, m.memory ? m.memory->held : 0); }
  /// Converts bytes to gigabytes. Returns nullopt without a GPU.
  static std::optional<double> of_gpu(update_metrics const& m, std::int64_t bytes) {
    return m.memory && m.memory->is_on_gpu ? std::optional(static_cast<double>(bytes) / 1e9) : std::nullopt;
  }
};
/// Peak memory that tensors held on a GPU.
struct gpu_peak : run_metric<units::gigabytes, reduce::max, over_updates::max, reduce::max, reading_cost::none> {
  static constexpr char const* name = "gpu/peak_gb";
  static std::optional<double> of(update_metrics const& m) { return gpu_allocated::of_gpu(m, m.memory ? m.memory->peak() : 0); }
};
/// Memory that LibTorch reserved from the GPU's driver.
struct gpu_reserved : run_metric<units::gigabytes, reduce::max, over_updates::max, reduce::max, reading_cost::none> {
  static constexpr char const* name = "gpu/reserved_gb";
  static std::optional<double> of(update_metrics const& m) {
    return gpu_allocated::of_gpu(m, m.memory ? m.memory->reserved : 0);
  }
};
/// Share of the GPU's memory in use, as the driver counts it, other programs included.
struct gpu_memory : run_metric<units::share, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "gpu/mem_utilization";
  static std::optional<double> of(update_metrics const& m) {
    if (!m.gpu || !m.gpu->memory_used) return std::nullopt;
    double const total = m.gpu->memory_total.value_or(0.0);
    return total > 0.0 ? std::optional(*m.gpu->memory_used / total) : std::nullopt;
  }
};
/// Share of the time in which the GPU ran a kernel.
struct gpu_utilization : run_metric<units::share, reduce::mean, over_updates::last, reduce::min, reading_cost::none> {
  static constexpr char const* name = "gpu/utilization";
  static std::optional<double> of(update_metrics const& m) { return m.gpu ? m.gpu->utilization : std::nullopt; }
};
/// Temperature of the GPU.
struct gpu_temperature : run_metric<units::degrees, reduce::max, over_updates::last, reduce::max, reading_cost::none> {
  static constexpr char const* name = "gpu/temperature";
  static std::optional<double> of(update_metrics const& m) { return m.gpu ? m.gpu->temperature : std::nullopt; }
};

}  // namespace metrics

/// A list of metrics.
template <class... Metrics>
struct run_metric_list {};

/// The metrics that are computed from a line of the record.
using run_metrics =
    run_metric_list<metrics::loss, metrics::gradient_norm, metrics::learning_rate, metrics::epoch, metrics::tokens_per_second,
                    metrics::update_time, metrics::skipped, metrics::clip_fraction, metrics::loss_scale, metrics::rollbacks,
                    metrics::oom_rung, metrics::data_wait, metrics::time_of_data, metrics::time_of_forward,
                    metrics::time_of_backward, metrics::time_of_update, metrics::time_of_saving, metrics::time_of_evaluating,
                    metrics::max_allocated, metrics::max_reserved, metrics::gpu_allocated, metrics::gpu_peak,
                    metrics::gpu_reserved, metrics::gpu_memory, metrics::gpu_utilization, metrics::gpu_temperature>;

/// Calls `visit(name, value)` for each value that sinks and alarms receive from a line: those of run_metrics, the measured values, and
/// the values that the program logged.
template <class Visit>
void for_each_value(update_metrics const& m, Visit const& visit) {
  auto const add = [&](char const* name, std::optional<double> const& value) {
    if (name != nullptr && value) visit(std::string_view(name), *value);
  };
  [&]<class... Metrics>(run_metric_list<Metrics...>) { (add(Metrics::name, Metrics::of(m)), ...); }(run_metrics{});
  m.measured.for_each(
      [&]<class Metric>(Metric, std::optional<double> const& value) { add(Metric::name, shown_value<Metric>(value)); });
  for (auto const& [name, value] : m.own) visit(std::string_view(name), value);
}

/// Returns the values of `for_each_value`.
std::vector<named_value> named_values(update_metrics const& m);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/run_metric.ipp>
#endif
