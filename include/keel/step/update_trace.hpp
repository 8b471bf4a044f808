// Locates the origin of a non-finite update: reruns its micro-batches in order from the saved inputs, and bisects a faulty batch down to
// its rows. Restores gradients, buffers, random state and registered state afterwards.
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

/// The inputs of an update, except model and optimizer, which a non-finite update did not change.
struct update_inputs {
  struct entry {
    any_micro_batch* batch;
    random_snapshot random;  ///< random state before the forward pass
  };
  std::vector<entry> micro_batches;
  std::vector<std::unique_ptr<any_micro_batch>> owned;  ///< batches that were copied to outlive their call
  std::string missing;                                  ///< why inputs are missing; empty if complete

  update_inputs();
  update_inputs(update_inputs&&) noexcept;
  update_inputs& operator=(update_inputs&&) noexcept;
  ~update_inputs();
  void clear();
};

/// How to rerun the micro-batches of an update.
struct replay_settings {
  double scale = 1.0;                ///< factor on the loss
  std::int64_t pieces = 1;           ///< per micro-batch
  std::int64_t length = 0;           ///< tokens that rows are truncated to; 0: not truncated
  program_state* program = nullptr;  ///< registered state, or null
  std::vector<std::int64_t> without_rows =
      {};  ///< rows to omit from each micro-batch, ascending; the ranges between them run as pieces
};

/// The result of rerunning an update.
struct traced_update {
  nonfinite_origin origin;
  std::vector<double> losses;  ///< one per micro-batch or piece that ran
  std::string gradients;       ///< checksum of all gradients at the end of the rerun; empty if it did not complete
};

class update_trace {
 public:
  /// Runs the forward pass of the rows from `begin` to before `end`, with the recipe's settings.
  using forward_pass =
      std::function<weighted_loss(any_micro_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* units)>;

  /// Model, optimizer and parameters must outlive this object.
  update_trace(incident::settings const& settings, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
               parameter_list const& parameters);
  update_trace(update_trace const&) = delete;
  update_trace& operator=(update_trace const&) = delete;

  /// Adds another model that loss functions use; a trace restores its buffers too. It must live until remove().
  void add(torch::nn::Module& other) { others_.push_back(&other); }
  /// Removes `other`, which may be destroyed afterwards.
  void remove(torch::nn::Module& other) { std::erase(others_, &other); }

  /// True while fewer incidents have been traced than the limit allows.
  bool is_on() const { return traced_ < settings_.most; }
  /// Begins an update. `is_previous_pending`: the previous one is pending on a device, so its inputs are kept.
  void begin(bool is_previous_pending);
  /// Adds a copied micro-batch.
  void add(std::unique_ptr<any_micro_batch> batch);
  /// Adds a micro-batch that outlives the update.
  void add(any_micro_batch& batch);
  /// Marks the inputs as incomplete: the update cannot be rerun.
  void set_missing_reason(char const* why) { kept_.missing = why; }
  /// Ends the update. Keeps the inputs of one that is pending on a device.
  void end(bool is_previous_pending);
  /// Drops the inputs of the update that was pending on a device. `is_open`: the next one is open.
  void settled(bool is_open);

  /// Call after an update was applied.
  void accepted() { consecutive_ = false; }
  /// True if this skipped update should be traced: it is non-finite, the first of a series of skipped updates, and within the limit. If so,
  /// counts it as traced.
  bool start_trace(reason why);
  /// Inputs of the open update, or of the one before it.
  update_inputs const& inputs_of(bool is_previous) const { return is_previous ? before_ : kept_; }
  /// Reruns the update and locates the first non-finite value. If a pass throws, the origin is reported as unknown.
  traced_update locate_origin(bool is_previous, forward_pass const& forward, replay_settings const& settings) {
    return locate_origin(inputs_of(is_previous), forward, settings);
  }
  /// As above for an update that was read from a file.
  traced_update locate_origin(update_inputs const& kept, forward_pass const& forward, replay_settings const& settings);
  /// Locates the input that made a buffer non-finite: the row with the largest absolute value.
  static nonfinite_origin origin_of_buffer(update_inputs const& kept, std::string const& name);

 private:
  class state_restorer;

  nonfinite_origin run_again(update_inputs const& kept, forward_pass const& forward, replay_settings const& settings,
                             traced_update& to);
  /// Finds a non-finite parameter, optimizer state or buffer.
  std::optional<nonfinite_origin> find_nonfinite_in_state() const;
  std::string find_nonfinite_state(std::string const& parameter) const;
  void find_rows(update_inputs::entry const& at, std::int64_t begin, std::int64_t end, forward_pass const& forward,
                 replay_settings const& settings, std::vector<field_copies> const& program, nonfinite_origin& origin) const;

  incident::settings settings_;
  torch::nn::Module& model_;
  std::vector<torch::nn::Module*> others_;
  torch::optim::Optimizer& optimizer_;
  parameter_list const& parameters_;
  update_inputs kept_;
  update_inputs before_;  ///< inputs of the update that is pending on a device
  long long traced_ = 0;
  bool consecutive_ = false;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_trace.ipp>
#endif
