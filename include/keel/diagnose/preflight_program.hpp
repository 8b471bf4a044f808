// The program under preflight, independent of its recipe and the types of its batches and its loss.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <keel/batch_guard/batch_watch.hpp>
#include <keel/checkpoint/state_part.hpp>
#include <keel/config/config.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/parameters.hpp>
#include <keel/schedule/lr_range_test.hpp>
#include <keel/trainer/preflight_result.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class state_reader;
class state_writer;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// One of the program's batches, optionally with replaced tensors.
struct tried_batch {
  std::size_t index = 0;
  std::vector<at::Tensor> instead = {};
};

/// A fault to inject into an update.
enum class tried_fault : unsigned char { none, memory_after_forward, memory_in_backward };

struct tried_update {
  bool is_applied = false;
  bool is_overflow = false;  ///< of the loss scale, which is expected now and then
  bool gave_up = false;      ///< the ladder has no rung left
  double loss = 0.0;
  std::string words;  ///< why it was not applied; empty if it was
};

/// A step of the run's recipe on its model and optimizer, at the learning rates of the parameter groups. All changes are undone.
class tried_step {
 public:
  virtual ~tried_step() = default;
  /// Makes an update, repeating the batches until it has all of its micro-batches. Throws what the step throws.
  virtual tried_update update(std::span<tried_batch const> batches, tried_fault fault = tried_fault::none) = 0;
  /// Sets the learning rates to those of the parameter groups times `factor`, without a schedule.
  virtual void use_rate(double factor) = 0;
  virtual std::size_t rungs_taken() = 0;
  virtual std::string last_rung() const = 0;
  /// Saves the whole state of the run to an existing, empty directory; load() restores it.
  virtual void save(std::string const& directory) = 0;
  virtual void load(std::string const& directory) = 0;

 protected:
  tried_step() = default;
  tried_step(tried_step const&) = default;
  tried_step& operator=(tried_step const&) = default;
};

/// An evaluation of the program, on at most `most` batches.
struct tried_evaluation {
  std::string name;
  std::function<void(std::int64_t most)> run;
};

/// Returns true if the model normalizes over a batch, so that rows and positions affect each other in training mode.
bool normalises_over_a_batch(torch::nn::Module& model);

class preflight_program {
 public:
  virtual ~preflight_program() = default;

  virtual config const& recipe() const = 0;
  virtual torch::nn::Module& model() = 0;
  /// All models of the run as one module: the loss may run through each of them.
  virtual torch::nn::Module& all_models() = 0;
  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual parameter_list const& parameters() = 0;
  virtual std::int64_t updates_of_run() const = 0;  ///< 0 if unknown
  virtual std::int64_t updates_so_far() const = 0;
  virtual double highest_rate() const = 0;  ///< of the first parameter group
  /// Null: no output.
  virtual std::FILE* console() const = 0;
  virtual std::string run_directory() const = 0;  ///< empty if there is none
  virtual bool begins_with_weights() const = 0;   ///< true for fine-tuning: options.weights_from is set

  virtual std::size_t batches() const = 0;
  virtual std::int64_t rows(std::size_t batch) const = 0;
  /// Returns the tensors that a batch lists as its fields, in order; empty if its type lists none.
  virtual std::vector<at::Tensor> tensors(std::size_t batch) = 0;
  virtual batch_contents contents(std::size_t batch) const = 0;
  /// Runs a forward pass with the recipe's settings, without recompute. Restores random state, buffers and registered state.
  virtual weighted_loss loss(tried_batch const& batch) = 0;

  /// Calls `run`, then restores model, optimizer, registered state, random state and training modes.
  virtual void aside(std::function<void()> const& run) = 0;
  virtual void with_step(std::function<void(tried_step&)> const& use) = 0;
  virtual lr_range_result range(lr_range_options const& options) = 0;
  virtual std::vector<tried_evaluation> evaluations() = 0;
  /// Returns the bytes of an update as keel::memory::estimate gives them; nullopt if the batch cannot be sliced.
  virtual std::optional<std::int64_t> peak_memory(int state_per_parameter) = 0;

 protected:
  preflight_program() = default;
  preflight_program(preflight_program const&) = default;
  preflight_program& operator=(preflight_program const&) = default;
};

/// Saves a checkpoint to an existing, empty directory. Throws what a save throws.
void save_rehearsal(preflight_program& program, std::vector<state_part> const& parts, std::int64_t update,
                    std::string const& directory);
/// Loads that checkpoint. Throws what a resume throws.
void load_rehearsal(preflight_program& program, std::vector<state_part> const& parts, std::string const& directory);

/// Runs checks and adds a row for each to the result.
class preflight_table {
 public:
  using clock = std::chrono::steady_clock;
  /// `seconds`: target duration of all checks together. Prints the name of a check to `console`, unless that is null, if more than two
  /// seconds have passed since the last line.
  preflight_table(preflight_result& result, double seconds, std::FILE* console)
      : result_(result), seconds_(seconds), console_(console) {}
  void passed(char const* check, std::string words) { add(check, preflight_verdict::passed, std::move(words), ""); }
  void failed(char const* check, std::string words, std::string fix) {
    add(check, preflight_verdict::failed, std::move(words), std::move(fix));
  }
  void not_applicable(char const* check, std::string words) {
    add(check, preflight_verdict::not_applicable, std::move(words), "");
  }
  void advise(std::string words) { result_.advice.push_back(std::move(words)); }
  /// Runs a check. If it throws, the check failed with the exception's message. Reports it as not run if the time is over.
  void run(char const* check, std::function<void()> const& look);
  double seconds() const { return std::chrono::duration<double>(clock::now() - began_).count(); }
  /// Starts the time limit of the checks that train.
  void begin_training() { training_ends_ = std::max(seconds_, seconds() + fewest_of_training); }
  bool is_over() const { return seconds() > training_ends_; }
  /// Adds a row for a check that ran out of time, with its result so far.
  void not_enough_time(char const* check, std::string const& words) {
    not_applicable(check, "not enough time within options.seconds" + (words.empty() ? "" : ": " + words));
  }
  void show_progress(char const* check);

 private:
  // Seconds. Wiring checks take a few updates each; training checks are unreliable with fewer updates.
  static constexpr double fewest_of_looks = 10.0, fewest_of_training = 5.0, between_lines = 2.0;
  void add(char const* check, preflight_verdict verdict, std::string words, std::string fix) {
    result_.rows.push_back({check, verdict, std::move(words), std::move(fix)});
  }
  preflight_result& result_;
  double seconds_;
  double training_ends_ = std::max(seconds_, fewest_of_looks);
  std::FILE* console_;
  clock::time_point began_ = clock::now();
  double shown_at_ = 0.0;
};

}  // namespace keel::detail::inline KEEL_MODE
