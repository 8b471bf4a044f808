// Runs the forward and backward passes of one update, accumulates their results, and can restore the state from before the update.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <keel/config/config.hpp>
#include <keel/core/buffers.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/loss_accumulator.hpp>
#include <keel/core/parameters.hpp>
#include <keel/gradients/gradient_versions.hpp>
#include <keel/gradients/interference.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/layer_watch.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/oom/ladder_position.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <keel/step/any_micro_batch.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/step_environment.hpp>
#include <keel/step/update_decision.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class update_pass {
 public:
  /// All arguments must outlive this object.
  update_pass(torch::nn::Module& model, parameter_list const& parameters, config const& recipe,
              step_environment const& environment);
  update_pass(update_pass const&) = delete;
  update_pass& operator=(update_pass const&) = delete;

  /// Applies numbers that the program changed. Call between updates.
  void apply_numbers(config const& present);
  /// Call after the parameter list changed, between updates.
  void parameters_changed();

  memory::phase_watch& memory() { return memory_; }
  phase_clock& phases() { return phases_; }
  layer_watch& layers() { return layers_; }
  update_sums const& sums() const { return sums_; }
  /// Rows that stay together when a micro-batch is split.
  std::int64_t granularity() const { return granularity_; }
  buffer_snapshot& buffers() { return buffers_; }
  /// Registers program state to restore together with the buffers. It must outlive this object.
  void restore_on_skip(program_state& state) { program_ = &state; }
  /// The registered program state; null if none was registered.
  program_state* registered() const { return program_; }
  bool has_program_state() const { return program_ != nullptr && !program_->empty(); }
  /// True if the update can take micro-batches.
  bool is_open() const { return gradients_.has_value(); }
  /// True if all micro-batches of the update have weight zero.
  bool has_zero_weight() const { return sums_.loss.weight == 0.0; }
  /// True if any parameter has a gradient.
  bool has_gradients() const;

  /// Saves the state to restore and opens an update. `scale`: loss scale known on the host; `device_scale`: loss scale held in a device
  /// tensor. With `losses_stay_on_device` the backward pass is launched without reading the loss, which would synchronize host and device.
  void open(double scale, at::Tensor const& device_scale, bool losses_stay_on_device);
  /// Restores the state from before the update, including random state if the recipe has a ladder, and closes the update.
  void reset_update();
  /// Discards the update, after an exception or on request, and restores the buffers and the user state that its forward passes
  /// modified. Restores nothing once begin_update() was called.
  void drop();
  /// A deferred update's hooks run while the next update is open, and may modify parameters. before_deferred_hooks() verifies that nothing
  /// was changed before the hooks; after_deferred_hooks() accepts what the hooks changed.
  void before_deferred_hooks() const { watch_.require_unchanged(); }
  void after_deferred_hooks() { watch_.capture_parameters(); }
  /// Call just before parameters change: from here on nothing can be restored.
  void begin_update() { can_restore_ = false; }
  /// Discards the gradients and restores buffers and program state. Batch norm updates its running statistics in the forward pass, so a
  /// NaN there would outlive the batch.
  void skip();
  /// Closes the update. Keeps the gradients allocated until the next one begins: freeing them here would return their pages to the
  /// operating system, only to request them again.
  void close();
  /// Returns the accumulated gradients after the last micro-batch. Throws interference_error (E19) if the program changed a gradient or a
  /// parameter since then. `has_sent`: gradients of this update were already sent to other ranks and released. Throws data_error (E07) if
  /// the weight is not zero, no gradient was sent, and no parameter has one.
  gradients<stage::scaled> complete(bool has_sent = false);
  /// Call under zero<3>, where the ranks communicate during their passes. `after_backward` is called after each backward pass. A micro-batch
  /// that is split ends at the first piece whose loss is not finite, because the other ranks end theirs.
  void set_after_backward_hook(std::function<void()> after_backward) { after_backward_ = std::move(after_backward); }
  /// Call when gradients were sent and released after the passes of a micro-batch.
  void gradients_sent() { watch_.take(may_accumulate_); }
  /// Call when another rank has ended the passes of a micro-batch.
  void end_cancelled() {
    phases_.stop();
    capture_marks();
  }
  /// Throws interference_error (E19) if the program changed a gradient or a parameter since the micro-batch.
  void require_unchanged() const { watch_.require_unchanged(); }

  /// Runs forward and backward of one micro-batch, split and shortened as `relief` requires. Returns its loss and weight. Throws
  /// interference_error (E19) if the program changed a gradient or a parameter since the previous micro-batch.
  loss_accumulator run(any_micro_batch& batch, memory_settings const& relief);

  /// One-shot callback before the next backward pass. Receives the losses of the micro-batch, the weight, and the loss of the pass. Called
  /// only if the loss is known to be finite, or if losses stay on the device.
  using before_backward = std::function<void(loss_accumulator const&, double, at::Tensor const&)>;
  void set_before_backward_hook(before_backward call) { before_backward_ = std::move(call); }
  /// Returns the unit and the total weight as they would be after one more micro-batch of this weight.
  std::pair<double, double> weights_with(double weight) const;

  /// Begins a micro-batch whose backward passes the program runs, until end_manual_backward().
  void begin_manual_backward();
  /// Ends it. `loss`: the loss that was differentiated; it is recorded and checked for non-finite values.
  loss_accumulator end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens);
  /// Restarts the accumulation for the next loss evaluation of a closure optimizer. Does not restore buffers.
  void restart(double scale);

  /// Reruns the forward pass of rows [begin, end) of an earlier micro-batch, with the settings of run().
  weighted_loss rerun_forward(any_micro_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* listener,
                              memory_settings const& relief) const;

 private:
  void restore();
  void run_piece(any_micro_batch& piece, memory_settings const& relief, loss_accumulator& tally);
  /// Returns the loss of a piece; nullopt if its function threw because of a non-finite value.
  std::optional<weighted_loss> forward(any_micro_batch& piece, memory_settings const& relief);
  /// Reruns the forward pass from `random`; true if a non-finite value occurs.
  bool was_nonfinite(any_micro_batch& piece, random_snapshot const& random, memory_settings const& relief);
  void add_to_sum(loss_accumulator const& tally) { is_sum_ ? sums_.loss.add_term(tally) : sums_.loss.add(tally); }
  void add_named_losses(weighted_loss const& loss);
  void add_gradients(weighted_loss const& loss);
  /// True if a loss of the update, whose current micro-batch has `tally`, is known to be non-finite: the update will be skipped.
  bool has_nonfinite_loss(loss_accumulator const& tally) const;
  void add_nonfinite(std::int64_t rows, loss_accumulator& tally) const;
  std::int64_t length(memory_settings const& relief) const { return shortens_ ? relief.length : 0; }
  void capture_marks();

  parameter_list const& parameters_;
  step_environment const& environment_;
  precision::kind precision_;
  bool has_ladder_;
  bool handles_nonfinite_exceptions_;
  bool shortens_;
  bool may_recompute_;
  bool may_fuse_;
  std::int64_t granularity_;
  bool may_accumulate_;  ///< more micro-batches may follow in an update
  bool is_sum_;          ///< sums the losses of micro-batches instead of averaging
  torch::nn::Module& model_;
  gradient_versions versions_;
  open_update_watch watch_;
  buffer_snapshot buffers_;
  program_state* program_ = nullptr;
  std::vector<field_copies> saved_copies_;  ///< program state before the first micro-batch
  std::vector<field_marks> marks_after_;    ///< its fields after the last micro-batch so far
  bool can_restore_ = false;                ///< an update is open, and no part of it was applied
  random_snapshot random_;
  memory::phase_watch memory_;
  phase_clock phases_;
  layer_watch layers_;
  bool losses_stay_on_device_ = false;
  std::function<void()> after_backward_;  ///< empty: this rank runs its passes alone
  before_backward before_backward_;
  std::optional<gradients<stage::scaled, accumulation::partial>> gradients_;
  update_sums sums_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_pass.ipp>
#endif
