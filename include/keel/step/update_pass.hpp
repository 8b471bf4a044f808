// The forward and backward passes of one update: what they add up, and how all of it is put back to where it began.
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
  /// All of them outlive this.
  update_pass(torch::nn::Module& model, parameter_list const& parameters, config const& recipe,
              step_environment const& environment);
  update_pass(update_pass const&) = delete;
  update_pass& operator=(update_pass const&) = delete;

  /// The program changed numbers. Between updates.
  void apply_numbers(config const& present);
  /// The list of parameters is another one. Between updates.
  void parameters_changed();

  memory::phase_watch& memory() { return memory_; }
  phase_clock& phases() { return phases_; }
  layer_watch& layers() { return layers_; }
  update_sums const& sums() const { return sums_; }
  /// Rows that are cut together.
  std::int64_t granularity() const { return granularity_; }
  buffer_snapshot& buffers() { return buffers_; }
  /// State of the program that is put back with the buffers; it outlives this.
  void restore_on_skip(program_state& state) { program_ = &state; }
  /// Null for a step without a trainer.
  program_state* registered() const { return program_; }
  bool has_program_state() const { return program_ != nullptr && !program_->empty(); }
  /// There are gradients to add to.
  bool is_open() const { return gradients_.has_value(); }
  /// No micro-batch of the update counted.
  bool has_zero_weight() const { return sums_.loss.weight == 0.0; }
  /// A parameter has one.
  bool has_gradients() const;

  /// `scale`: loss scale known on the host; `device_scale`: loss scale held in a device tensor. With `losses_stay_on_device` the
  /// backward pass is launched without reading the loss, which would synchronize host and device.
  void open(double scale, at::Tensor const& device_scale, bool losses_stay_on_device);
  /// Puts everything back to where the update began, and closes it.
  void reset_update();
  /// Discards the update, after an exception or on request, and restores the buffers and the user state that its forward passes
  /// modified. Restores nothing once begin_update() was called.
  void drop();
  /// The hooks of the previous, deferred update run while this one is open and may modify parameters; these two calls bracket them.
  void before_deferred_hooks() const { watch_.require_unchanged(); }
  void after_deferred_hooks() { watch_.capture_parameters(); }
  /// The parameters are about to change: from here on nothing can be put back.
  void begin_update() { can_restore_ = false; }
  /// The update's gradients are not used. Batch norm wrote its running statistics in the forward pass: a NaN there would
  /// outlive the batch.
  void skip();
  /// The gradients stay until the next update begins: freed here, their pages would go back to the system, to be asked for
  /// again.
  void close();
  /// The update has all of its micro-batches. Throws interference_error (E19) where the program changed a gradient or a
  /// parameter since the last one, data_error (E07) where no parameter has a gradient.
  gradients<stage::scaled> complete();

  /// Forward and backward of one micro-batch, cut and shortened as `relief` says.
  /// Throws interference_error (E19) where the program changed a gradient or a parameter since the micro-batch before.
  loss_accumulator run(any_micro_batch& batch, memory_settings const& relief);

  /// One-shot callback before the next backward pass. Receives the loss of the micro-batch and its weight. Called only if the loss is
  /// known to be finite, or if losses stay on the device.
  using before_backward = std::function<void(loss_accumulator const&, double)>;
  void set_before_backward_hook(before_backward call) { before_backward_ = std::move(call); }
  /// Of the open update, with a loss of this weight more: what the micro-batches' weights count in, and their sum in it.
  std::pair<double, double> weights_with(double weight) const;

  /// The program runs its own backward passes from here to end_manual_backward().
  void begin_manual_backward();
  /// `loss` is what they went back from, for the record and for whether it is finite.
  loss_accumulator end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens);
  /// An optimizer with a closure evaluates the loss once more: the update begins again, with buffers as they are.
  void restart(double scale);

  /// The forward pass of rows of a batch that was taken before, as run() does it.
  weighted_loss rerun_forward(any_micro_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* listener,
                              memory_settings const& relief) const;

 private:
  void restore();
  void run_piece(any_micro_batch& piece, memory_settings const& relief, loss_accumulator& tally);
  /// The loss of a piece; nothing where its function threw because of a value that is not finite.
  std::optional<weighted_loss> forward(any_micro_batch& piece, memory_settings const& relief);
  /// A forward pass from the same random state has a value that is not finite.
  bool was_nonfinite(any_micro_batch& piece, random_snapshot const& random, memory_settings const& relief);
  void add_to_sum(loss_accumulator const& tally) { is_sum_ ? sums_.loss.add_term(tally) : sums_.loss.add(tally); }
  void add_parts(weighted_loss const& loss);
  void add_gradients(weighted_loss const& loss);
  void add_nonfinite(std::int64_t rows, loss_accumulator& tally) const;
  std::int64_t length(memory_settings const& relief) const { return shortens_ ? relief.length : 0; }
  void capture_marks();

  parameter_list const& parameters_;
  step_environment const& environment_;
  precision::kind precision_;
  bool has_ladder_;
  bool takes_exceptions_;
  bool shortens_;
  bool may_recompute_;
  bool may_fuse_;
  std::int64_t granularity_;
  bool may_accumulate_;  ///< more micro-batches may follow in an update
  bool is_sum_;          ///< of the micro-batches' losses, and not their mean
  torch::nn::Module& model_;
  gradient_versions versions_;
  open_update_watch watch_;
  buffer_snapshot buffers_;
  program_state* program_ = nullptr;
  std::vector<field_copies> saved_copies_;  ///< before the first micro-batch
  std::vector<field_marks> marks_after_;    ///< after the last one
  bool can_restore_ = false;                ///< an update is open, and nothing of it was applied
  random_snapshot random_;
  memory::phase_watch memory_;
  phase_clock phases_;
  layer_watch layers_;
  bool losses_stay_on_device_ = false;
  before_backward before_backward_;
  std::optional<gradients<stage::scaled, accumulation::partial>> gradients_;
  update_sums sums_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_pass.ipp>
#endif
