// Finds out where an update that was not finite began: it runs again from what it began with, a micro-batch after the other, and a batch
// that is at fault is cut until its rows are known. It leaves everything as it was: gradients, buffers, random state, registered state.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <keel/core/loss.hpp>
#include <keel/core/outcome.hpp>
#include <keel/core/parameters.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/nonfinite/nonfinite_origin.hpp>
#include <keel/policy/incident.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/step/any_micro_batch.hpp>
#include <keel/step/program_state.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// What an update began with, beside model and optimizer, which it did not change.
struct update_inputs {
  struct entry {
    any_micro_batch* batch;
    random_snapshot random;  ///< before its forward pass
  };
  std::vector<entry> micro_batches;
  std::vector<std::unique_ptr<any_micro_batch>> owned;  ///< of those that outlive the call that brought them
  std::string missing;                                  ///< why not all of them are here; empty: they are

  update_inputs();
  update_inputs(update_inputs&&) noexcept;
  update_inputs& operator=(update_inputs&&) noexcept;
  ~update_inputs();
  void clear();
};

/// How the micro-batches of an update are run.
struct replay_settings {
  double scale = 1.0;                ///< of the loss
  std::int64_t pieces = 1;           ///< into which each is cut
  std::int64_t length = 0;           ///< tokens to which each is shortened; 0: not
  program_state* program = nullptr;  ///< registered state, or null
  std::vector<std::int64_t> without_rows =
      {};  ///< of each micro-batch, ascending; what is left runs in the pieces between them
};

/// What an update came to when it ran again.
struct traced_update {
  nonfinite_origin origin;
  std::vector<double> losses;  ///< of the micro-batches, or of their pieces, as far as they ran
  std::string gradients;       ///< a checksum of all gradients where it ended; empty: it did not run
};

class update_trace {
 public:
  /// The forward pass of rows of a micro-batch, as the recipe wants it.
  using forward_pass =
      std::function<weighted_loss(any_micro_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* units)>;

  /// All of them outlive this.
  update_trace(incident::settings const& settings, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
               parameter_list const& parameters);
  update_trace(update_trace const&) = delete;
  update_trace& operator=(update_trace const&) = delete;

  /// Another model that loss functions run through, whose buffers a look leaves as they are too. It outlives this.
  void add(torch::nn::Module& other) { others_.push_back(&other); }
  /// From here on it may be gone.
  void remove(torch::nn::Module& other) { std::erase(others_, &other); }

  /// There may be something to find in an update that begins now.
  bool is_on() const { return traced_ < settings_.most; }
  /// An update begins; where the one before it is under way on a device, what that began with stays.
  void begin(bool one_is_pending);
  void add(std::unique_ptr<any_micro_batch> batch);
  /// One that outlives the update.
  void add(any_micro_batch& batch);
  /// What the update began with is not all here.
  void set_missing_reason(char const* why) { kept_.missing = why; }
  /// No update is open; what the update that is under way on a device began with stays.
  void end(bool one_is_pending);
  /// The update that was under way on a device is known; `is_open`: the one after it is open.
  void settled(bool is_open);

  /// An update was applied.
  void accepted() { consecutive_ = false; }
  /// True where this skipped update is to be looked into.
  bool takes(reason why);
  /// What an update began with: the open one, or the one before it.
  update_inputs const& kept(bool is_before) const { return is_before ? before_ : kept_; }
  /// Throws nothing that a forward or backward pass threw: then the place is unknown.
  traced_update look(bool is_before, forward_pass const& forward, replay_settings const& settings) {
    return look(kept(is_before), forward, settings);
  }
  /// The same of an update that was read from a file.
  traced_update look(update_inputs const& kept, forward_pass const& forward, replay_settings const& settings);
  /// Where a buffer came from that the forward passes of the update made non-finite: the row with the largest value.
  static nonfinite_origin origin_of_buffer(update_inputs const& kept, std::string const& name);

 private:
  class state_restorer;

  nonfinite_origin run_again(update_inputs const& kept, forward_pass const& forward, replay_settings const& settings,
                             traced_update& to);
  /// Of parameters, optimizer state and buffers.
  std::optional<nonfinite_origin> in_state() const;
  std::string find_nonfinite_state(std::string const& parameter) const;
  void find_rows(update_inputs::entry const& at, std::int64_t begin, std::int64_t end, forward_pass const& forward,
                 replay_settings const& settings, std::vector<field_copies> const& program, nonfinite_origin& origin) const;

  incident::settings settings_;
  torch::nn::Module& model_;
  std::vector<torch::nn::Module*> others_;
  torch::optim::Optimizer& optimizer_;
  parameter_list const& parameters_;
  update_inputs kept_;
  update_inputs before_;  ///< of an update that is under way on a device
  long long traced_ = 0;
  bool consecutive_ = false;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_trace.ipp>
#endif
