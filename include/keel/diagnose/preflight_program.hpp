// A program as the checks of a preflight see it, whatever its recipe and the types of its batches and its loss.
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

/// One of the program's batches, with other tensors in their places where there are any.
struct tried_batch {
  std::size_t index = 0;
  std::vector<at::Tensor> instead = {};
};

/// What fails in an update on purpose.
enum class tried_fault : unsigned char { none, memory_after_forward, memory_in_backward };

struct tried_update {
  bool is_applied = false;
  bool is_overflow = false;  ///< of the loss scale, whose ordinary signal it is
  bool gave_up = false;      ///< no rung of the ladder was left
  double loss = 0.0;
  std::string words;  ///< why it was not applied
};

/// A step of the run's recipe on its model and optimizer, at the groups' own rates; nothing of it stays.
class tried_step {
 public:
  virtual ~tried_step() = default;
  /// An update whose micro-batches are these, again and again. Throws what the step throws.
  virtual tried_update update(std::span<tried_batch const> batches, tried_fault fault = tried_fault::none) = 0;
  /// From here on the groups' own rates times `factor`, and no schedule.
  virtual void use_rate(double factor) = 0;
  virtual std::size_t rungs_taken() = 0;
  virtual std::string last_rung() const = 0;
  /// The whole state of the run to a directory, which exists and is empty, and back.
  virtual void save(std::string const& directory) = 0;
  virtual void load(std::string const& directory) = 0;

 protected:
  tried_step() = default;
  tried_step(tried_step const&) = default;
  tried_step& operator=(tried_step const&) = default;
};

/// One evaluation of the program, on so many batches at most.
struct tried_evaluation {
  std::string name;
  std::function<void(std::int64_t most)> run;
};

/// The model normalises over a batch, so that its rows and positions are of use to each other while it trains.
bool normalises_over_a_batch(torch::nn::Module& model);

class preflight_program {
 public:
  virtual ~preflight_program() = default;

  virtual config const& recipe() const = 0;
  virtual torch::nn::Module& model() = 0;
  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual parameter_list const& parameters() = 0;
  virtual std::int64_t updates_of_run() const = 0;  ///< 0: not known
  virtual std::int64_t updates_so_far() const = 0;
  virtual double highest_rate() const = 0;  ///< of the first group
  /// Null: nowhere.
  virtual std::FILE* console() const = 0;
  virtual std::string run_directory() const = 0;  ///< empty: none
  virtual bool begins_with_weights() const = 0;   ///< options.weights_from: a fine-tuning

  virtual std::size_t batches() const = 0;
  virtual std::int64_t rows(std::size_t batch) const = 0;
  /// The tensors that a batch lists as its fields, in their order; none where its type does not say.
  virtual std::vector<at::Tensor> tensors(std::size_t batch) = 0;
  virtual batch_contents contents(std::size_t batch) const = 0;
  /// Forward, as the recipe wants it, without recompute. Random numbers, buffers and registered state are then as before.
  virtual weighted_loss loss(tried_batch const& batch) = 0;

  /// Runs something and puts model, optimizer, registered state, random numbers and modes back.
  virtual void aside(std::function<void()> const& run) = 0;
  virtual void with_step(std::function<void(tried_step&)> const& use) = 0;
  virtual lr_range_result range(lr_range_options const& options) = 0;
  virtual std::vector<tried_evaluation> evaluations() = 0;
  /// Bytes of an update by keel::memory::estimate; nothing where the batch cannot be cut.
  virtual std::optional<std::int64_t> peak_memory(int state_per_parameter) = 0;

 protected:
  preflight_program() = default;
  preflight_program(preflight_program const&) = default;
  preflight_program& operator=(preflight_program const&) = default;
};

/// A checkpoint in a directory, which exists and is empty. Throws what a save throws.
void save_rehearsal(preflight_program& program, std::vector<state_part> const& parts, std::int64_t update,
                    std::string const& directory);
/// Throws what a resume throws.
void load_rehearsal(preflight_program& program, std::vector<state_part> const& parts, std::string const& directory);

/// The table in the making.
class preflight_table {
 public:
  using clock = std::chrono::steady_clock;
  /// `seconds`: that all checks together aim at. Names on `console`, where there is one, what begins more than two
  /// seconds after the line before.
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
  /// Runs a check that may throw: then it failed, in the words of the exception. Without one where the time is over.
  void run(char const* check, std::function<void()> const& look);
  double seconds() const { return std::chrono::duration<double>(clock::now() - began_).count(); }
  /// What trains may take so long from now on.
  void begin_training() { training_ends_ = std::max(seconds_, seconds() + fewest_of_training); }
  bool is_over() const { return seconds() > training_ends_; }
  /// A check that was cut short: what was seen until then.
  void not_enough_time(char const* check, std::string const& words) {
    not_applicable(check, "not enough time within options.seconds" + (words.empty() ? "" : ": " + words));
  }
  void show_progress(char const* check);

 private:
  // Seconds. The looks at the wiring take a few updates each, and training checks say little of fewer than they get.
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
