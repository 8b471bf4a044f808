// Outputs for a run's values in addition to its own record, such as TensorBoard, a database or a socket. Derive from
// metric_sink:
//     struct to_database : keel::metric_sink {
//       void scalars(std::int64_t update, std::span<keel::named_value const> values) override { .. }
//     };
//     keel::trainer<recipe> run{model, optimizer, {.run_directory = "run", .sinks = {std::make_shared<to_database>()}}};
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <span>
#include <string>
#include <string_view>

namespace keel::inline KEEL_MODE {

struct histogram;

/// A named value, such as "train/loss". README.md in this folder lists the names.
struct named_value {
  std::string name;  ///< such as "train/loss"
  double value;      ///< reduced over all ranks
};

/// Receives a run's values. A run calls each sink on a separate thread, one call at a time, in order and within about a second.
/// A slow sink therefore never blocks the run. If a call throws, that call is lost, and the exception is reported once. Use a
/// sink for one run only: its calls do not identify the run.
class metric_sink {
 public:
  metric_sink() = default;
  metric_sink(metric_sink const&) = delete;
  metric_sink& operator=(metric_sink const&) = delete;
  virtual ~metric_sink() = default;

  /// Receives the values measured up to an update.
  virtual void scalars(std::int64_t update, std::span<named_value const> values) = 0;
  /// Receives a distribution of gradients, weights or activations, at the cadence of options.histograms_every.
  virtual void distribution(std::int64_t /*update*/, std::string_view /*name*/, histogram const& /*values*/) {}
  /// Receives a text in Markdown.
  virtual void text(std::int64_t /*update*/, std::string_view /*name*/, std::string_view /*words*/) {}
  /// The run rolled back or was resumed. Values of later updates than this one are abandoned.
  virtual void restarted_after(std::int64_t /*update*/) {}
  /// Writes buffered values. Called from time to time and at the end of a run.
  virtual void flush() {}
};

}  // namespace keel::inline KEEL_MODE
