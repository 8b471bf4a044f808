// The update, whatever the recipe: open, accumulate, complete, check, clip, apply or skip, publish. It reads the recipe's configuration at
// run time; keel::step is its typed front.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <keel/core/outcome.hpp>
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

/// What a keel::step does whatever its recipe's types are. All ranks make the same calls; an observer's calls come from within
/// them.
class step_engine : public manual_backward_host {
 public:
  /// As update_parts.
  step_engine(torch::nn::Module& model, torch::optim::Optimizer& optimizer, recipe_numbers const& numbers,
              recipe_rules const& rules, custom_policies const& custom, std::int64_t updates, step_observer& observer,
              world_of_ranks const& world, step_environment const& environment);
  ~step_engine();
  step_engine(step_engine const&) = delete;
  step_engine& operator=(step_engine const&) = delete;

  /// Applies the last, partial accumulation, normalized by its actual weight, and waits for an update that is pending on a device. Returns
  /// nullopt if there is neither. Collective: if any rank has no open update, all ranks discard theirs.
  std::optional<step_outcome> flush();
  /// Drops an open update; nothing of it was or will be applied.
  void drop_update();
  /// Waits for an update that is under way on a device; throws as its call would have.
  std::optional<step_outcome> settle();

  /// Unfreezes these parameters: sets requires_grad and adds them to the optimizer as a new parameter group with base learning rate `rate`,
  /// which a schedule scales. Checkpoints save the group. Parameters that are already trained are ignored. Throws error: E12 during an open
  /// update, E11 for a tensor that is not a parameter of the model.
  void unfreeze(std::vector<at::Tensor> const& which, double rate);
  /// The reverse for the optimizer's last group, as a rollback to before it needs; false where no group was unfrozen.
  bool refreeze_last_group();

  /// In the place of the observer that it was built with; outlives this.
  void set_observer(step_observer& observer) { parts_.observer = &observer; }
  /// Passes pending layer statistics to the observer; waits for those that a device still computes.
  void flush_layer_metrics() { show_layers(true); }
  /// Registers user state to restore when an update is skipped, retried or discarded. It must outlive the step.
  void restore_on_skip(program_state& state) { parts_.pass.restore_on_skip(state); }
  /// Also restores the buffers of this model, which loss functions run through. It must live until forget().
  void restore_on_skip(torch::nn::Module& other);
  /// Stops restoring the buffers of `other`, which may be destroyed afterwards.
  void forget(torch::nn::Module& other);

  /// Of the update that is being accumulated.
  std::int64_t open_micro_batches() const { return parts_.micro_batches; }
  /// What it does with the other ranks of a recipe that replicates.
  replication& ranks() { return parts_.ranks; }
  /// As above.
  replication const& ranks() const { return parts_.ranks; }
  /// All ranks, at an update boundary: throws world_error for parameters, buffers or options of the optimizer that are not rank 0's.
  void verify_replicas();

  /// An update is under way on a device, and the counts below are those before it.
  bool is_pending() const { return parts_.pending.has_value(); }
  /// Updates that were applied; one that is under way on a device is not.
  std::int64_t updates() const { return parts_.updates; }
  /// Updates that were skipped.
  std::int64_t skipped() const { return parts_.skipped; }
  /// Both, and one that is under way.
  std::int64_t attempted() const { return parts_.attempted(); }
  /// The share of the applied updates that the clip policy changed; 0 before the first.
  double clip_fraction() const {
    return parts_.updates == 0 ? 0.0 : static_cast<double>(parts_.clipped) / static_cast<double>(parts_.updates);
  }
  /// Into how many pieces each micro-batch is cut, after rungs that were taken.
  std::int64_t pieces() const { return parts_.ladder.relief().pieces; }
  /// What the recipe, and the rungs that were taken, do for memory.
  memory_settings const& relief() const { return parts_.ladder.relief(); }
  /// The rungs that are left, and those that were taken.
  memory_ladder& ladder() { return parts_.ladder; }
  /// Of the first parameter group, for the next update.
  double learning_rate() const { return parts_.schedule.rate(); }
  /// Factor on the next update's loss.
  double loss_scale() const { return parts_.scaler.factor(); }
  /// Runs an update again that was read from a file, and leaves everything as it is. `forward` as keel::update_trace takes it.
  traced_update replay(update_inputs const& kept, update_trace::forward_pass const& forward, replay_settings settings);
  /// The optimizer threw inside its step: parameters may be partly updated, and only a checkpoint is consistent.
  bool is_half_updated() const { return parts_.half_updated; }
  /// How far the open update came, or the last one if it was dropped; nothing where memory is not counted.
  std::optional<memory::shortage> shortage() { return open_ ? parts_.pass.memory().interrupted() : dropped_at_; }
  /// Of the parameters; null where the recipe has no keel::ema.
  moving_average* average_or_null();
  /// An update has begun, and waits for micro-batches.
  bool has_open_update() const { return open_; }
  /// No update is open or being closed: everything that a checkpoint holds belongs together.
  bool at_boundary() const { return !open_ && !closing_; }
  /// The recipe with this step's numbers in it.
  config const& recipe_value() const { return parts_.recipe(); }
  /// With those that were changed since.
  config const& present_value() const { return parts_.present(); }
  /// For another step with the same.
  detail::recipe_numbers const& recipe_numbers() const { return parts_.numbers; }
  step_environment const& environment() const { return parts_.environment; }
  /// Those that the optimizer trains, with their names.
  parameter_list const& parameters() const { return parts_.parameters; }
  /// As given.
  torch::optim::Optimizer& optimizer() const { return parts_.optimizer; }
  /// As given.
  torch::nn::Module& model() const { return parts_.model; }
  /// What construction found out for the rules.
  run_facts const& facts() const { return parts_.context.run(); }
  /// The run's length, where the step was made with run_facts::length_of_batches. Throws recipe_error with the rules that it breaks.
  void set_length(std::int64_t updates);
  /// Writes the learning rates.
  lr_schedule& schedule() { return parts_.schedule; }
  /// Where the time goes.
  phase_clock& phases() { return parts_.pass.phases(); }
  /// Decide whether an update is applied.
  update_guards& guards() { return parts_.guards; }
  /// What the source of the batches says of itself; asked with the first batch.
  void add_facts(data::settings const& data) { parts_.context.add_facts(data); }

  /// Everything that a resumed run needs of the step itself, apart from the model and the optimizer.
  void visit(state_writer& archive);
  /// Reads what the other call wrote.
  void visit(state_reader& archive);

  // A micro-batch whose backward passes the program runs.
  void begin_manual_backward() override;
  step_outcome end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override;
  void abandon_manual_backward() override;

 protected:
  /// An exception of `run` drops the update, and the other ranks learn of it.
  step_outcome drop_on_exception(c10::function_ref<step_outcome()> run);
  /// Takes one micro-batch, whose type the front has checked.
  step_outcome accumulate(any_micro_batch& batch);
  /// Validates a batch: `run` throws for one that cannot be trained on. On a single rank the open update then stays open for the next
  /// batch; with several ranks all of them discard theirs.
  void check(c10::function_ref<void()> run);
  /// What the rules know of this step.
  recipe_context& context() { return parts_.context; }
  /// Rows that stay together where a micro-batch is cut.
  std::int64_t granularity() const { return parts_.pass.granularity(); }
  /// Opens a micro-batch whose backward passes the program runs.
  manual_backward open_manual_backward(std::int64_t rows, std::int64_t tokens) {
    return {*this, parts_.parameters.device,   parts_.environment.autocast(recipe_value().precision.kind), relief(),
            rows,  tokens == 0 ? rows : tokens};
  }
  /// Takes new numbers for what the recipe leaves open.
  void change_numbers(numbers const& some);

 private:
  void require_no_manual_backward() const;
  void apply_numbers(config const& present);
  /// For an update that has to be looked into.
  void keep(any_micro_batch& batch);
  /// Before an update's first micro-batch; what follows may happen again.
  void begin();
  /// Between updates: a rung for an allocator that loses time.
  void relieve_allocator();
  /// Where no rung is left the run goes on as slowly as it did.
  void take_rung_for_slow_allocator();
  /// Runs the remaining micro-batches and, if `complete`, finishes the update. If memory runs out before the optimizer step, the whole
  /// update is retried on the next rung.
  step_outcome advance(bool complete, c10::function_ref<void()> run_rest);
  /// What ends the update, if anything does before it is decided.
  std::optional<step_outcome> attempt_update(bool complete, c10::function_ref<void()> attempt);
  void open_update();
  /// The next rung, which all ranks take together; hooks are called.
  oom::rung_kind take_rung(std::string const& message, bool may_give_up = true);
  void end_update();
  void run(any_micro_batch& batch, std::int64_t index);
  void observe_end(loss_accumulator const& tally, std::int64_t index);
  update_strategy& strategy();
  update_decision decide();
  /// The update before this one, which may change the scale, the rate and the limits.
  void settle_previous();
  /// Applies the update, or skips it.
  step_outcome finish(update_strategy& way, update_decision found);
  /// The same of one that the device decides, and says what became of the one before it.
  step_outcome finish_deferred(update_decision found);
  /// Everything that follows an update whose end is known.
  step_outcome conclude(update_decision const& found);
  step_outcome accept(update_decision const& found);
  /// The policy says whether the run tolerates it.
  step_outcome skip(update_decision const& found);
  /// Where it began, in words; empty where that is not asked for.
  std::string trace_incident(update_decision const& found, reason why);
  step_outcome close(update_decision const& found, step_outcome result);
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

  // The open update. Between updates all of it is empty, which is why a checkpoint is only taken there.
  bool open_ = false;
  bool closing_ = false;
  bool is_manual_backward_open_ = false;  ///< the program runs backward passes
  std::optional<memory::shortage> dropped_at_;
  std::optional<step_outcome> previous_result_;  ///< of the update before the open one
  std::size_t unfrozen_groups_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/step_engine.ipp>
#endif
