// Run-time options of a trainer or run; everything else is in the recipe.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/core/time_source.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/sink.hpp>
#include <keel/rule/checkpoint.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Run-time options of a trainer or a run. Pass the same options on all ranks.
struct trainer_options {
  /// Directory of checkpoints, metrics.jsonl and events.jsonl; empty: nothing is written, and a recipe with checkpoints throws error (E12).
  std::filesystem::path run_directory = {};
  /// Length of the run in updates. If 0, `epochs` or the end of the data determines it.
  std::int64_t updates = 0;
  /// Number of passes over the data. If 0, as many as `updates` needs; one if `updates` is 0 too.
  std::int64_t epochs = 0;
  /// Micro-batches per epoch, such as keel::shuffled_batches::size(). If `epochs` is set and `updates` is not, determines the length of the
  /// run, which schedules need. 0: unknown; fit() then takes it from its source, if that has a size.
  std::int64_t batches_per_epoch = 0;
  /// Continue from the newest checkpoint in the run directory, if there is one.
  bool resume = true;
  /// Continue from the checkpoint of this update instead of the newest, with this program's learning rates. Newer checkpoints are renamed
  /// to `abandoned-step-..`. If the program is started again with the same value and learning rate, it continues from the newest
  /// checkpoint.
  std::optional<std::int64_t> resume_at = {};
  /// Checkpoint directory (`step-..`) to start from if the run directory has no checkpoints. It may belong to any run with this recipe.
  std::filesystem::path resume_from = {};
  /// Weights to start from if the run directory has no checkpoints: any path that keel::load_weights accepts. All other state starts at its
  /// initial values.
  std::filesystem::path weights_from = {};
  /// Names of settings that may differ from the checkpoint; this program's values are then used. A name is "lr" or another optimizer
  /// option, a slot of the recipe, such as "clip", or a name in `fingerprints`.
  std::vector<std::string> accept = {};
  /// Accept a checkpoint that was written with another recipe, run length or optimizer options. This program's learning rates and options
  /// are then used.
  bool accept_changed_recipe = false;
  /// Fingerprints of the run's inputs, by name, such as {{"vocabulary", keel::fingerprint_of(words)}}. Stored in the record and in
  /// checkpoints. A checkpoint with another fingerprint is rejected (E03) unless `accept` contains the name.
  std::map<std::string, std::string> fingerprints = {};
  /// Stop at the next update boundary on SIGTERM, SIGINT, SIGHUP or SIGUSR1; SIGUSR2 requests a checkpoint, even before fit is called.
  bool stop_on_signals = true;
  /// Record the memory peak of each phase of an update. On the CPU this needs a keel::memory::budget in the process; on a GPU it resets the
  /// peak of LibTorch's allocator.
  bool watch_memory = true;
  /// Stream for progress output; nullptr: none.
  std::FILE* console = stdout;
  console_mode mode = console_mode::automatic;  ///< how progress is shown
  /// Updates per line of progress, if `console` is not a terminal.
  std::int64_t console_every = 1;
  /// Updates per line of metrics.jsonl and per point in a sink. A line has the means, sums and extremes over its updates.
  std::int64_t record_every = 1;
  /// Updates between layer statistics, for layers.jsonl and sinks: norms of gradients, parameters and updates, and activation statistics of
  /// each keel::unit. A large tensor is sampled at 4,096 values. 0: never.
  std::int64_t layers_every = 100;
  /// Updates between histograms of gradients, weights and activations, for sinks; each also computes the layer statistics. 0: never.
  std::int64_t histograms_every = 0;
  /// Also write TensorBoard event files, to `tensorboard` in the run directory.
  bool tensorboard = true;
  /// Floating-point operations per token, forward and backward, for model FLOP utilization (keel/metrics/operation_count.hpp). 0: unknown
  /// until trainer::count_operations.
  double operations_per_token = 0.0;
  /// Peak throughput of the device at this recipe's precision, in operations per second; 0: measured if needed.
  double peak_operations_per_second = 0.0;
  /// Further sinks for the values of the run. Do not share a sink between trainers, because its calls do not identify the run.
  std::vector<std::shared_ptr<metric_sink>> sinks = {};
  /// Replaces the machine's file system, for tests; null: the real one.
  std::shared_ptr<file_system> own_files = {};
  std::shared_ptr<time_source const> own_clock = {};  ///< replaces the clock, for tests; null: the real one

  /// The file system that the run uses.
  file_system& files() const { return own_files ? *own_files : real_files(); }
  /// The clock that the run uses.
  time_source const& clock() const { return own_clock ? *own_clock : real_time(); }
};

}  // namespace keel::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Length of the run in updates of `accumulate` micro-batches each; 0: unknown. Throws error (E12) on overflow.
std::int64_t length_of(trainer_options const& options, std::int64_t accumulate);

/// Like length_of(), except that with a single rank it returns run_facts::length_of_batches if the schedule needs a length and only
/// options.epochs is set; fit() then counts the batches. With several ranks it does not, because their batch counts may differ.
std::int64_t length_at_construction(trainer_options const& options, config const& recipe, bool is_single_rank);

/// Returns the end of the console notice about a resume: which parameters the checkpoint replaced.
inline char const* describe_replaced_source(trainer_options const& options) {
  return options.weights_from.empty() ? ", replacing the parameters of the program's model"
                                      : ", ignoring options.weights_from, which applies only to a new run";
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Adapts the options to a rank. Rank 0 keeps the run directory, the console and the sinks. Every other rank N gets the subdirectory
/// `rank-N` for its events, times and incidents.
trainer_options adapt_options_to_rank(trainer_options options, int rank);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Throws error (E12) for invalid or contradictory options. `saves`: the recipe saves checkpoints.
void require_sound(trainer_options const& options, bool saves);

/// Throws error (S19) if a resumed run has more updates than `length`, so that nothing would be trained.
void require_work_left(std::int64_t updates, std::int64_t length);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/options.ipp>
#endif
