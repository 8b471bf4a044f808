// Where a run's values go beside its own record: TensorBoard, a database, a socket. A sink of your own is a class:
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

/// A value and its name, such as "train/loss"; README.md in this folder lists the names.
struct named_value {
  std::string name;  ///< such as "train/loss"
  double value;      ///< of all ranks
};

/// A run calls these on a thread that is the sink's alone, one at a time, in their order and within a second or so, so that a slow
/// sink keeps nothing waiting. What one throws is said once and costs that call. A sink is of one run: its calls do not say of which.
class metric_sink {
 public:
  metric_sink() = default;
  metric_sink(metric_sink const&) = delete;
  metric_sink& operator=(metric_sink const&) = delete;
  virtual ~metric_sink() = default;

  /// What was measured up to an update.
  virtual void scalars(std::int64_t update, std::span<named_value const> values) = 0;
  /// Of gradients, weights or activations, as options.histograms_every says.
  virtual void distribution(std::int64_t /*update*/, std::string_view /*name*/, histogram const& /*values*/) {}
  /// Markdown.
  virtual void text(std::int64_t /*update*/, std::string_view /*name*/, std::string_view /*words*/) {}
  /// The run rolled back or was resumed, and abandoned what the sink has of later updates.
  virtual void restarted_after(std::int64_t /*update*/) {}
  /// At the end of a run, and from time to time.
  virtual void flush() {}
};

}  // namespace keel::inline KEEL_MODE
