// What a trainer takes at run time; everything else is in the recipe.
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

/// What a trainer or a run takes at run time. All ranks give the same.
struct trainer_options {
  /// Checkpoints, metrics.jsonl and events.jsonl go here; empty: nothing is written, and a recipe with checkpoints is rejected.
  std::filesystem::path run_directory = {};
  /// Length of the run in updates; 0: until the data ends.
  std::int64_t updates = 0;
  /// Passes over the data; 0: as many as `updates` needs, or one.
  std::int64_t epochs = 0;
  /// Micro-batches of an epoch, as keel::shuffled_batches::size() says: with `epochs` and without `updates` they give the run's
  /// length, which schedules need. 0: not known, or as the batches of fit say.
  std::int64_t batches_per_epoch = 0;
  /// Continue from the newest checkpoint in the run directory.
  bool resume = true;
  /// Continue from the checkpoint of this update and not from the newest, with this program's learning rates. Newer checkpoints
  /// step aside as `abandoned-step-..`. Started again with the same number and rate, the program goes on from the newest.
  std::optional<std::int64_t> resume_at = {};
  /// A run directory without checkpoints begins with this one, of any run with this recipe: its directory `step-..`.
  std::filesystem::path resume_from = {};
  /// A run directory without checkpoints begins with these weights, and everything else at its beginning: whatever
  /// keel::load_weights takes.
  std::filesystem::path weights_from = {};
  /// What may differ from the checkpoint, by name, and is then this program's: "lr" and other options of the optimizer, or
  /// slots of the recipe, such as "clip".
  std::vector<std::string> accept = {};
  /// Take a checkpoint although this recipe, the length of the run or the optimizer's options differ from those that wrote it.
  /// This program's learning rates and options then count.
  bool accept_changed_recipe = false;
  /// What the run is made of, by name, as {{"vocabulary", keel::fingerprint_of(words)}}: it stands in the record and in checkpoints, and a
  /// checkpoint of another one is rejected (E03) unless `accept` has the name.
  std::map<std::string, std::string> fingerprints = {};
  /// Stop at the next update boundary on SIGTERM, SIGINT, SIGHUP or SIGUSR1; SIGUSR2 asks for a checkpoint, also before fit.
  bool stop_on_signals = true;
  /// Record what memory each phase of an update takes: on the CPU where the process has a keel::memory::budget; on a GPU the
  /// peak of LibTorch's allocator is reset for it.
  bool watch_memory = true;
  /// Where progress goes; nullptr: nowhere.
  std::FILE* console = stdout;
  console_mode mode = console_mode::automatic;  ///< how progress is shown
  /// Without a terminal: one line every so many updates.
  std::int64_t console_every = 1;
  /// Updates of one line of metrics.jsonl and of one point in a sink, which stands for all of them: means, sums and extremes.
  std::int64_t record_every = 1;
  /// Updates from one look at the layers to the next, for layers.jsonl and sinks: norms of gradients and parameters, how much the update
  /// changes, activations of keel::unit. A large tensor is looked at in a sample of 4,096 values. 0: never.
  std::int64_t layers_every = 100;
  /// Updates from one histogram of gradients, weights and activations to the next, for sinks, each a look at the layers too. 0: never.
  std::int64_t histograms_every = 0;
  /// Also write what TensorBoard reads, to `tensorboard` in the run directory.
  bool tensorboard = true;
  /// For model FLOP utilisation (keel/metrics/operation_count.hpp): floating-point operations of a token, forward and backward; 0: not
  /// known before trainer::count_operations.
  double operations_per_token = 0.0;
  /// What the device can do in this recipe's precision, in operations a second; 0: measured where it is needed.
  double peak_operations_per_second = 0.0;
  /// Further places for the values of the run; each for this trainer alone, because its calls name no run.
  std::vector<std::shared_ptr<metric_sink>> sinks = {};
  /// In place of the machine's file system and clock, for tests; null: the machine's.
  std::shared_ptr<file_system> own_files = {};
  std::shared_ptr<time_source const> own_clock = {};  ///< as own_files

  /// The files that the run uses.
  file_system& files() const { return own_files ? *own_files : real_files(); }
  /// The clock that the run uses.
  time_source const& clock() const { return own_clock ? *own_clock : real_time(); }
};

}  // namespace keel::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Updates of the whole run, of `accumulate` micro-batches each; 0: not known.
std::int64_t length_of(trainer_options const& options, std::int64_t accumulate);

/// The same, or run_facts::length_of_batches for a schedule that needs the run's length where options.epochs alone are given of it: the
/// batches may know their number. Ranks may have different numbers of them.
std::int64_t length_at_construction(trainer_options const& options, config const& recipe, bool is_single_rank);

/// What the program had loaded by itself is lost with a resume, and a person who did not expect that reads why.
inline char const* describe_replaced_source(trainer_options const& options) {
  return options.weights_from.empty() ? ", in place of the parameters that the program gave"
                                      : ", in place of options.weights_from, which is for a run that begins";
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Rank 0 has the console, the sinks, and the run directory; each other one has a directory in it, `rank-1` and so on, for its events,
/// its times and its incidents.
trainer_options adapt_options_to_rank(trainer_options options, int rank);

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Throws error (E12) for options that no run can follow; `saves`: the recipe has checkpoints.
void require_sound(trainer_options const& options, bool saves);

/// Throws error (S19) where a resumed run is already longer than it is asked to be, so that nothing would train.
void require_work_left(std::int64_t updates, std::int64_t length);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/options.ipp>
#endif
