// The phases of an update, independent of the recipe's type: open, accumulate, complete, check, clip, apply or skip, publish. The engine
// reads the recipe's configuration at run time; keel::step is its typed interface.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <keel/core/outcome.hpp>
#include <keel/shard/gathered_parameters.hpp>
#include <keel/step/any_micro_batch.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/host_update.hpp>
#include <keel/step/manual_backward.hpp>
#include <keel/step/replicated_update.hpp>
#include <keel/step/update_parts.hpp>
#include <keel/step/update_replay.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The implementation of keel::step, independent of the recipe's type. Collective: all ranks make the same calls. The observer is called
/// from within them.
class step_engine : public manual_backward_owner {
 public:
  /// Constructs the parts; see update_parts for lifetimes and exceptions.
  step_engine(torch::nn::Module& model, torch::optim::Optimizer& optimizer, recipe_numbers const& numbers,
              recipe_rules const& rules, custom_policies const& custom, std::int64_t updates, step_observer& observer,
              world_of_ranks const& world, step_environment const& environment);
  ~step_engine();
  step_engine(step_engine const&) = delete;
  step_engine& operator=(step_engine const&) = delete;

  /// Applies the last, partial accumulation, normalized by its actual weight, and waits for an update that is pending on a device. Returns
  /// nullopt if there is neither. Collective: if any rank has no open update, all ranks discard theirs.
  std::optional<step_outcome> flush();
  /// Discards an open update without applying any of it.
  void drop_update();
  /// Waits for an update that is pending on a device. Returns nullopt if there is none; throws what the call of that update would have
  /// thrown.
  std::optional<step_outcome> settle();

  /// Unfreezes these parameters: sets requires_grad and adds them to the optimizer as a new parameter group with base learning rate `rate`,
  /// which a schedule scales. Checkpoints save the group. Parameters that are already trained are ignored. Throws error: E12 during an open
  /// update, E11 for a tensor that is not a parameter of the model.
  void unfreeze(std::vector<at::Tensor> const& which, double rate);
  /// Undoes unfreeze() for the optimizer's last group, for a rollback to before it; false if no group was unfrozen.
  bool refreeze_last_group();

  /// Replaces the observer given at construction. `observer` must outlive the step.
  void set_observer(step_observer& observer) { parts_.observer = &observer; }
  /// Passes pending layer statistics to the observer; waits for those that are still being computed on a device.
  void flush_layer_metrics() { show_layers(true); }
  /// Registers user state to restore when an update is skipped, retried or discarded. It must outlive the step.
  void restore_on_skip(program_state& state) { parts_.pass.restore_on_skip(state); }
  /// Also restores the buffers of `other`, a model that loss functions run. It must live until forget(other).
  void restore_on_skip(torch::nn::Module& other);
  /// Removes `other` from traces and from the buffer broadcast; it may be destroyed afterwards. Skipped updates still restore its buffers,
  /// to which handles are kept.
  void forget(torch::nn::Module& other);

  /// Micro-batches accumulated in the open update.
  std::int64_t open_micro_batches() const { return parts_.micro_batches; }
  /// The collective operations of the step.
  replication& ranks() { return parts_.ranks; }
  /// The collective operations of the step.
  replication const& ranks() const { return parts_.ranks; }
  /// Collective, at an update boundary. Throws world_error if parameters, buffers or options of the optimizer differ from rank 0's.
  void verify_replicas();

  /// True while an update is pending on a device; updates() and skipped() do not include it.
  bool is_pending() const { return parts_.pending.has_value(); }
  /// Number of applied updates, not counting a pending one.
  std::int64_t updates() const { return parts_.updates; }
  /// Number of skipped updates, not counting a pending one.
  std::int64_t skipped() const { return parts_.skipped; }
  /// Applied, skipped and pending updates.
  std::int64_t attempted() const { return parts_.attempted(); }
  /// Fraction of the applied updates that were clipped; 0 before the first.
  double clip_fraction() const {
    return parts_.updates == 0 ? 0.0 : static_cast<double>(parts_.clipped) / static_cast<double>(parts_.updates);
  }
  /// Number of pieces that each micro-batch is split into, after the rungs taken so far.
  std::int64_t pieces() const { return parts_.ladder.relief().pieces; }
  /// Memory-saving measures in effect, from the recipe and the rungs taken so far.
  memory_settings const& relief() const { return parts_.ladder.relief(); }
  /// The rungs taken and remaining.
  memory_ladder& ladder() { return parts_.ladder; }
  /// Learning rate of the first parameter group for the next update.
  double learning_rate() const { return parts_.schedule.rate(); }
  /// Loss scale of the next update.
  double loss_scale() const { return parts_.scaler.factor(); }
  /// Reruns an update that was read from a file, without side effects. `forward` as in keel::update_trace.
  traced_update replay(update_inputs const& kept, update_trace::forward_pass const& forward, replay_settings settings);
  /// True if the optimizer threw during its step: parameters may be partly updated, and only a checkpoint is consistent.
  bool is_half_updated() const { return parts_.half_updated; }
  /// Where memory ran out in the open update, or in the last one if it was discarded; nullopt if memory usage is not tracked.
  std::optional<memory::shortage> shortage() { return open_ ? parts_.pass.memory().interrupted() : dropped_update_shortage_; }
  /// Moving average of the parameters; null if the recipe has no keel::ema.
  moving_average* average_or_null();
  /// True if an update is accumulating micro-batches.
  bool has_open_update() const { return open_; }
  /// True if no update is open or being closed, so that a checkpoint would be consistent.
  bool at_boundary() const { return !open_ && !closing_; }
  /// The recipe with the numbers that this step was constructed with.
  config const& recipe_value() const { return parts_.recipe(); }
  /// The recipe with its current numbers, after change().
  config const& current_config() const { return parts_.current(); }
  /// The recipe's numbers, to construct another step with them.
  detail::recipe_numbers const& recipe_numbers() const { return parts_.numbers; }
  step_environment const& environment() const { return parts_.environment; }
  /// The parameters that the optimizer trains, with their names.
  parameter_list const& parameters() const { return parts_.parameters; }
  /// All-gathers the full parameters for the lifetime of the returned object, so that code outside the units can read and write them. Needed
  /// under shard::zero<3> only. Collective.
  [[nodiscard]] gathered_parameters gather_parameters() { return gathered_parameters({&parts_.ranks}); }
  /// Permanently restores the full parameters. Call before destroying a step with shard::zero<3> if the model is used afterwards; no further
  /// updates are possible. Collective.
  void unshard_parameters() { parts_.ranks.unshard_parameters(); }
  /// The optimizer given at construction.
  torch::optim::Optimizer& optimizer() const { return parts_.optimizer; }
  /// The model given at construction.
  torch::nn::Module& model() const { return parts_.model; }
  /// Facts about the run that the constructor collected, for the rules.
  run_facts const& facts() const { return parts_.context.run(); }
  /// Sets the run's length, if the step was constructed with run_facts::length_of_batches. Throws recipe_error with the rules that it
  /// breaks.
  void set_length(std::int64_t updates);
  /// Sets the learning rates of the optimizer.
  lr_schedule& schedule() { return parts_.schedule; }
  /// Measures the time of each phase.
  phase_clock& phases() { return parts_.pass.phases(); }
  /// The guards, which count skipped updates and decide when the run ends or rolls back.
  update_guards& guards() { return parts_.guards; }
  /// Adds facts about the source of the batches; the rules are checked with the next batch.
  void add_facts(data::settings const& data) { parts_.context.add_facts(data); }

  /// Writes the step's own state, without the model and the optimizer.
  void visit(state_writer& archive);
  /// Reads that state.
  void visit(state_reader& archive);

  // Overrides of manual_backward_owner: the program runs the backward passes of a micro-batch.
  void begin_manual_backward() override;
  step_outcome end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override;
  void abandon_manual_backward() override;

 protected:
  /// Runs `run`; an exception discards the update and is reported to the other ranks.
  step_outcome drop_on_exception(c10::function_ref<step_outcome()> run);
  /// Processes one micro-batch, whose type keel::step has checked.
  step_outcome accumulate(any_micro_batch& batch);
  /// Validates a batch: `run` throws for one that cannot be trained on. On a single rank the open update then stays open for the next
  /// batch; with several ranks all of them discard theirs.
  void check(c10::function_ref<void()> run);
  /// The facts about this step that the rules check.
  recipe_context& context() { return parts_.context; }
  /// Rows that stay together when a micro-batch is split.
  std::int64_t granularity() const { return parts_.pass.granularity(); }
  /// Opens a micro-batch for which the program runs the backward passes.
  manual_backward open_manual_backward(std::int64_t rows, std::int64_t tokens) {
    return {*this, parts_.parameters.device,   parts_.environment.autocast(recipe_value().precision.kind), relief(),
            rows,  tokens == 0 ? rows : tokens};
  }
  /// Changes numbers that the recipe leaves open. Throws error (E12) during an open update, recipe_error (E22).
  void change_numbers(numbers const& changes);

 private:
  void require_no_manual_backward() const;
  void apply_numbers(config const& present);
  /// Retains the batch, so that the update can be traced if it is non-finite.
  void retain_for_trace(any_micro_batch& batch);
  /// Begins an update, before its first micro-batch; a retry does not repeat it.
  void begin();
  /// Between updates: takes a rung if the allocator slows training down.
  void relieve_allocator();
  /// Takes a rung because the allocator is slow. If no rung is left, the run continues without one.
  void take_rung_for_slow_allocator();
  /// Runs the remaining micro-batches and, if `complete`, finishes the update. If memory runs out before the optimizer step, the whole
  /// update is retried on the next rung.
  step_outcome advance(bool complete, c10::function_ref<void()> run_rest);
  /// Runs the micro-batches once. Returns the outcome if the update ends before the decision whether to apply it.
  std::optional<step_outcome> attempt_update(bool complete, c10::function_ref<void()> attempt);
  void open_update();
  /// Takes the next rung, on all ranks together, and calls the hooks.
  oom::rung_kind take_rung(std::string const& message, bool may_give_up = true);
  void end_update();
  void run(any_micro_batch& batch, std::int64_t index);
  /// Runs the forward and backward passes of a micro-batch. Under zero<3> a failure or non-finite loss on another rank ends them early.
  loss_accumulator run_passes(any_micro_batch& batch);
  void observe_end(loss_accumulator const& tally, std::int64_t index);
  update_strategy& strategy();
  update_decision decide();
  /// Waits for the previous update, whose result may change the loss scale, the learning rate and the limits.
  void settle_previous();
  /// Applies the update, or skips it.
  step_outcome finish(update_strategy& strategy, update_decision decision);
  /// Same as finish(), for a device-decided update; returns the result of the previous one.
  step_outcome finish_deferred(update_decision decision);
  /// Completes an update whose decision is known.
  step_outcome conclude(update_decision const& decision);
  step_outcome accept(update_decision const& decision);
  /// Skips the update. Throws, or requests a rollback, if the policy tolerates no further skip.
  step_outcome skip(update_decision const& decision);
  /// Describes where the non-finite value arose; empty if incidents are not traced.
  std::string trace_incident(update_decision const& decision, reason why);
  step_outcome close(update_decision const& decision, step_outcome result);
  void show_layers(bool wait);
  bool can_decide_on_device() const;
  bool traces_incidents() const;
  template <class Archive>
  void visit_all(Archive& archive);

  update_parts parts_;
  host_update host_{parts_};
  device_update device_{parts_};
  replicated_update replicated_{parts_, host_, device_};
  update_replay replay_;

  // State of the open update. It is empty between updates, so checkpoints are taken only then.
  bool open_ = false;
  bool closing_ = false;
  bool is_manual_backward_open_ = false;  ///< the program has an open micro-batch
  std::optional<memory::shortage> dropped_update_shortage_;
  std::optional<step_outcome> previous_result_;  ///< result of the update before the open one
  std::size_t unfrozen_groups_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/step_engine.ipp>
#endif
