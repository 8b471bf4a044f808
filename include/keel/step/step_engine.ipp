// Definitions for step_engine.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/ScopeExit.h>

#include <cstddef>
#include <exception>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/checkpoint/archive.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/step/closure_update.hpp>
#include <keel/step/step_engine.hpp>
#include <keel/step/training_mode.hpp>
#include <type_traits>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// A clip policy's state, as one field of the step's.
struct clip_state_field {
  clip_mechanism& of;
  template <class Archive>
  void visit(Archive& archive) {
    if constexpr (std::is_same_v<Archive, state_writer> || std::is_same_v<Archive, state_reader>) of.visit(archive);
  }
};

KEEL_BODY step_engine::step_engine(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                                   detail::recipe_numbers const& numbers, recipe_rules const& rules,
                                   custom_policies const& custom, std::int64_t updates, step_observer& observer,
                                   world_of_ranks const& world, step_environment const& environment)
    : parts_(model, optimizer, numbers, rules, custom, updates, observer, world, environment) {}
KEEL_BODY step_engine::~step_engine() = default;

// Micro-batches.

KEEL_BODY void step_engine::check(c10::function_ref<void()> run) {
  parts_.ranks.begin_call();
  try {
    run();
  } catch (...) {
    // Rethrown after the other ranks were notified.
    if (parts_.ranks.is_shared()) {
      parts_.ranks.report_failure();
      drop_update();
    }
    throw;
  }
}

KEEL_BODY step_outcome step_engine::drop_on_exception(c10::function_ref<step_outcome()> run) {
  try {
    return run();
  } catch (...) {
    // Rethrown after the other ranks were notified.
    parts_.ranks.report_failure();
    drop_update();
    throw;
  }
}

KEEL_BODY step_outcome step_engine::accumulate(any_micro_batch& batch) {
  parts_.require_average_swapped_out();
  require_no_manual_backward();
  if (!open_) begin();
  if (traces_incidents()) retain_for_trace(batch);
  std::int64_t const count = parts_.current().accumulate.count;
  std::int64_t const index = parts_.micro_batches++;
  bool const complete = parts_.micro_batches == count;
  bool const has_closure = parts_.has_closure();
  // The update may have to be retried from its first micro-batch.
  if (parts_.has_ladder() || (has_closure && count != 1)) {
    auto copy = batch.copy();
    if (!copy)
      throw error("E12", has_closure
                             ? "accumulation with a closure optimizer requires a batch and a loss function that can be "
                               "copied. Make both copyable, or use keel::accumulate<1>."
                             : "keel::oom::ladder retries an update, which requires a batch and a loss function that can "
                               "be copied. Make the batch type copyable, and pass the loss function by std::ref.");
    replay_.add(std::move(copy));
    return advance(complete, [&] {
      if (has_closure) replay_.rewind();
      replay_.run_rest([this](any_micro_batch& one, std::int64_t place) { run(one, place); });
    });
  }
  return advance(complete, [&] { run(batch, index); });
}

KEEL_BODY std::optional<step_outcome> step_engine::flush() {
  std::optional<step_outcome> last;
  if (!parts_.ranks.all_have_open_update(open_)) drop_update();
  if (open_) {
    parts_.ranks.begin_call();
    last = drop_on_exception([&] {
      require_no_manual_backward();
      return advance(true, [&] {
        if (parts_.has_closure()) replay_.rewind();
        replay_.run_rest([this](any_micro_batch& one, std::int64_t place) { run(one, place); });
      });
    });
  }
  if (last && last->is<result::gave_up>()) return last;
  if (auto settled = settle()) last = settled;
  return last;
}

KEEL_BODY void step_engine::begin_manual_backward() {
  parts_.require_average_swapped_out();
  require_no_manual_backward();
  if (parts_.has_closure())
    throw error("E12", "an optimizer with a closure evaluates the loss itself. Pass a loss function: step(batch, loss_of).");
  if (parts_.ranks.shards_parameters())
    throw error("E12",
                "step.open() is not supported under keel::shard::zero<3>, because an error on one rank must end the passes of "
                "all ranks. "
                "Pass a loss function: step(batch, loss_of), or use keel::shard::zero<2>.");
  parts_.ranks.begin_call();
  drop_on_exception([&]() -> step_outcome {
    if (!open_) begin();
    if (!parts_.pass.is_open()) open_update();
    parts_.trace.set_missing_reason("the program runs its backward passes itself");
    parts_.observer->observe(event::micro_batch_begin{parts_.begun(), parts_.micro_batches});
    parts_.pass.begin_manual_backward();
    is_manual_backward_open_ = true;
    return result::accumulated{parts_.micro_batches, parts_.current().accumulate.count};
  });
}

KEEL_BODY step_outcome step_engine::end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) {
  return drop_on_exception([&] {
    is_manual_backward_open_ = false;
    require_declared_rows(parts_.current().accumulate, rows);
    observe_end(parts_.pass.end_manual_backward(loss, rows, tokens), parts_.micro_batches);
    ++parts_.micro_batches;
    if (parts_.ranks.shards_gradients() && parts_.micro_batches < parts_.current().accumulate.count)
      replicated_.end_micro_batch();
    return advance(parts_.micro_batches == parts_.current().accumulate.count, [] {});
  });
}

KEEL_BODY void step_engine::abandon_manual_backward() {
  is_manual_backward_open_ = false;
  parts_.ranks.report_failure(std::make_exception_ptr(error("E12", "a micro-batch opened by step.open() was not closed")));
  drop_update();
}

KEEL_BODY void step_engine::require_no_manual_backward() const {
  if (is_manual_backward_open_)
    throw error("E12", "the micro-batch opened by step.open() is not closed. Call its close(loss) before the next one.");
}

KEEL_BODY bool step_engine::traces_incidents() const {
  // A trace runs the forward pass on one rank, whose units cannot be gathered.
  return parts_.recipe().incident.kind != incident::kind::off && parts_.observer->traces_incidents() &&
         !parts_.ranks.shards_parameters();
}

KEEL_BODY void step_engine::retain_for_trace(any_micro_batch& batch) {
  if (!parts_.trace.is_on()) return;
  if (parts_.current().accumulate.count == 1 && !parts_.decides_on_device) {
    parts_.trace.add(batch);
  } else if (auto copy = batch.copy()) {
    parts_.trace.add(std::move(copy));
  } else {
    parts_.trace.set_missing_reason("the batch or the loss function cannot be copied");
  }
}

// An update, from its first micro-batch to its decision.

KEEL_BODY void step_engine::begin() {
  parts_.decides_on_device = can_decide_on_device();
  if (!parts_.decides_on_device) settle();
  require_same_groups(parts_.parameters, parts_.optimizer);
  require_training_mode(parts_.model);
  parts_.repeated.require_none(parts_.optimizer);
  parts_.ranks.require_no_full_state();
  parts_.repeated.forget();
  if (parts_.has_ladder()) relieve_allocator();
  name_out_of_memory(parts_.begun(), [&] {
    auto const shards = parts_.ranks.sharded_state();
    parts_.ladder.prepare();
  });
  parts_.trace.begin(parts_.pending.has_value());
  open_ = true;
  dropped_update_shortage_.reset();
  parts_.pass.memory().begin(parts_.observer->watches_memory());
  parts_.observer->observe(event::update_begin{parts_.begun()});
}

KEEL_BODY bool step_engine::can_decide_on_device() const {
  if (needs_materialized_gradients(parts_.current().clip)) return false;
  // The hosts combine the gradient norms of the shards.
  if (parts_.ranks.shards_gradients()) return false;
  // By the time a deferred result is read, the next forward pass has changed the buffers.
  if (parts_.average && parts_.recipe().ema.buffers) return false;
  // The host restores the program's state, so it needs the decision immediately.
  if (parts_.pass.has_program_state()) return false;
  return parts_.engine != nullptr && parts_.parameters.one_device &&
         parts_.environment.decides_on_device(parts_.parameters.device);
}

KEEL_BODY void step_engine::open_update() {
  if (!parts_.pending && parts_.average) parts_.average->begin();
  bool const is_dynamic = parts_.recipe().loss_scale.kind == loss_scale::kind::dynamic;
  if (parts_.decides_on_device && !parts_.scale_on_device && is_dynamic)
    parts_.scale_on_device.emplace(parts_.recipe().loss_scale, parts_.scaler, parts_.parameters.tensors.front().device());
  bool const on_device = parts_.decides_on_device && parts_.scale_on_device;
  if (parts_.ranks.shards_parameters()) parts_.pass.set_after_backward_hook([this] { parts_.ranks.end_backward(); });
  // A layer's norm would need a collective over all shards, but not every rank may measure layers.
  parts_.pass.layers().begin(parts_.ranks.shards_parameters() ? layer_detail::none : parts_.observer->watches_layers());
  // Sharded gradients are sent during the backward pass, so the hosts must agree on the losses first.
  parts_.losses_stay_on_device = parts_.decides_on_device || (!parts_.ranks.shards_gradients() &&
                                                              parts_.environment.decides_on_device(parts_.parameters.device));
  parts_.pass.open(on_device ? 1.0 : parts_.scaler.factor(), on_device ? parts_.scale_on_device->factor() : at::Tensor(),
                   parts_.losses_stay_on_device);
  parts_.ranks.begin_update();
}

KEEL_BODY void step_engine::run(any_micro_batch& batch, std::int64_t index) {
  parts_.observer->observe(event::micro_batch_begin{parts_.begun(), index});
  bool const is_last = index + 1 == parts_.current().accumulate.count;
  if (parts_.ranks.is_shared() && (is_last || parts_.ranks.shards_gradients())) replicated_.overlap_agreement_with_backward();
  observe_end(run_passes(batch), index);
  if (!is_last && parts_.ranks.shards_gradients()) replicated_.end_micro_batch();
}

KEEL_BODY loss_accumulator step_engine::run_passes(any_micro_batch& batch) {
  if (!parts_.ranks.shards_parameters()) return parts_.pass.run(batch, relief());
  loss_accumulator tally;
  std::exception_ptr thrown;
  parts_.ranks.begin_pass();
  try {
    tally = parts_.pass.run(batch, relief());
  } catch (...) {
    // Rethrown by end_pass(), or replaced by the exception that ended the pass on another rank.
    thrown = std::current_exception();
  }
  if (parts_.ranks.end_pass(std::exchange(thrown, nullptr))) {
    parts_.pass.end_cancelled();
  } else {
    parts_.pass.gradients_sent();
  }
  return tally;
}

KEEL_BODY void step_engine::observe_end(loss_accumulator const& tally, std::int64_t index) {
  // A hook does not affect whether an update is applied; on a device it only costs a wait.
  bool const asks = parts_.losses_stay_on_device && parts_.observer->reads_losses();
  double const loss = asks && tally.is_on_device() ? parts_.read(tally.mean_on_device()) : tally.mean();
  parts_.observer->observe(event::micro_batch_end{parts_.begun(), index, loss, tally.weight});
}

KEEL_BODY step_outcome step_engine::advance(bool complete, c10::function_ref<void()> run_rest) {
  std::optional<update_decision> decision;
  std::optional<closure_update> closure;
  bool const has_closure = parts_.has_closure();
  auto const attempt = [&] {
    // A closure optimizer runs all micro-batches once per loss evaluation.
    if (has_closure && !complete) return;
    if (!parts_.pass.is_open()) open_update();
    if (has_closure) {
      decision.emplace(closure.emplace(parts_, run_rest).decide());
      return;
    }
    run_rest();
    if (complete) decision.emplace(decide());
  };
  if (auto gave_up = attempt_update(complete, attempt)) return *gave_up;
  if (!decision) return result::accumulated{parts_.micro_batches, parts_.current().accumulate.count};
  if (closure) return finish(*closure, std::move(*decision));
  step_outcome const result =
      parts_.decides_on_device ? finish_deferred(std::move(*decision)) : finish(strategy(), std::move(*decision));
  if (parts_.has_ladder() && parts_.ranks.take_rung_request()) take_rung_for_slow_allocator();
  return result;
}

KEEL_BODY update_strategy& step_engine::strategy() {
  if (shard::is_distributed(parts_.recipe().shard)) return replicated_;
  if (parts_.decides_on_device) return device_;
  return host_;
}

KEEL_BODY update_decision step_engine::decide() {
  parts_.require_average_swapped_out();
  parts_.pass.memory().enter(memory::phase::update);
  parts_.pass.phases().enter(run_phase::update);
  // With several ranks, replicated_update checks the total rows after the agreement.
  if (!shard::is_distributed(parts_.recipe().shard)) parts_.require_declared_rows();
  if (parts_.decides_on_device) {
    // A trace of the previous update runs backward passes.
    parts_.ranks.forget_backward();
    settle_previous();
  }
  return strategy().decide();
}

// Memory.

KEEL_BODY std::optional<step_outcome> step_engine::attempt_update(bool complete, c10::function_ref<void()> attempt) {
  if (!parts_.has_ladder()) {
    name_out_of_memory(parts_.begun(), attempt);
    return std::nullopt;
  }
  auto const next = [this](std::string const& message) -> std::optional<step_outcome> {
    parts_.pass.reset_update();
    // Settle the previous update first, so that all ranks take the rung after the same update.
    if (parts_.pending) parts_.ranks.abort_peers_on_exception([&] { settle_previous(); });
    replay_.rewind();
    if (take_rung(message) != oom::rung_kind::give_up) return std::nullopt;
    drop_update();
    return result::gave_up{reason::out_of_memory, message};
  };
  auto const attempt_again = [&] {
    parts_.ranks.begin_call();
    attempt();
  };
  // Ranks that communicate after every micro-batch also recover from an out-of-memory error after every one.
  return replay_.retry_on_out_of_memory(parts_.ranks, complete || parts_.ranks.shards_gradients(), attempt_again, next);
}

KEEL_BODY void step_engine::relieve_allocator() {
  bool const thrashes =
      parts_.ladder.thrashes(parts_.environment.allocator_retries(parts_.parameters.tensors.front().device()));
  if (parts_.ranks.is_shared()) return parts_.ranks.request_rung(thrashes);
  if (thrashes) take_rung_for_slow_allocator();
}

KEEL_BODY void step_engine::take_rung_for_slow_allocator() {
  take_rung("the allocator had to give its cache back and try again in 3 of the last 10 updates", false);
}

KEEL_BODY oom::rung_kind step_engine::take_rung(std::string const& message, bool may_give_up) {
  oom::rung_kind rung{};
  parts_.ranks.abort_peers_on_exception([&] {
    auto const& world = parts_.ranks.world();
    auto const pieces = agree(world, replay_.max_pieces()).value();
    auto const shards = parts_.ranks.sharded_state();
    rung = parts_.ladder.take_next(pieces, parts_.begun(), make_all_any_reducer(world));
  });
  if (rung != oom::rung_kind::give_up || may_give_up)
    parts_.observer->observe(
        event::out_of_memory{parts_.begun(), to_string(rung), message, relief().pieces, !may_give_up, shortage()});
  return rung;
}

// The end of an update.

KEEL_BODY step_outcome step_engine::finish(update_strategy& strategy, update_decision decision) {
  if (decision.skip_reason) {
    parts_.pass.skip();
    return skip(decision);
  }
  strategy.apply(decision);
  step_outcome const result = accept(decision);
  parts_.ranks.abort_peers_on_exception([&] { parts_.ranks.verify_replicas_periodically(); });
  return result;
}

KEEL_BODY step_outcome step_engine::finish_deferred(update_decision decision) {
  if (decision.decided) {
    strategy().apply(decision);
  } else {
    parts_.pass.skip();
  }
  decision.facts.memory = parts_.pass.memory().end();
  parts_.pass.phases().stop();
  decision.facts.times = parts_.pass.phases().take();
  pending_update& pending = parts_.pending.emplace(pending_update{
      decision.facts, decision.limits, {}, decision.skip_reason.value_or(reason::nonfinite_loss), decision.where});
  if (decision.decided) pending.result.emplace(std::move(decision.decided->result));
  parts_.half_updated = false;
  end_update();
  parts_.ranks.abort_peers_on_exception([&] { parts_.ranks.verify_replicas_periodically(); });
  return std::exchange(previous_result_, std::nullopt).value_or(result::pending{});
}

KEEL_BODY std::optional<step_outcome> step_engine::settle() {
  if (!parts_.pending) return std::nullopt;
  parts_.require_average_swapped_out();
  parts_.pass.before_deferred_hooks();
  pending_update update = std::move(*parts_.pending);
  parts_.pending.reset();
  scoped_flag const closing(closing_);
  step_outcome result = conclude(device_.conclude(std::move(update)));
  parts_.trace.settled(open_);
  parts_.pass.after_deferred_hooks();
  return result;
}

KEEL_BODY void step_engine::settle_previous() {
  name_out_of_memory_inside_update(parts_.updates, [&] {
    if (auto const before = settle()) previous_result_ = before;
  });
}

KEEL_BODY step_outcome step_engine::conclude(update_decision const& decision) {
  return decision.skip_reason ? skip(decision) : accept(decision);
}

KEEL_BODY step_outcome step_engine::accept(update_decision const& decision) {
  step_outcome const result = result::updated{decision.loss, decision.norm, decision.facts.learning_rate, decision.was_clipped};
  parts_.scaler.update(false);
  parts_.schedule.advance(result);
  parts_.guards.accepted(result);
  parts_.trace.accepted();
  parts_.clip->accepted(result);
  if (parts_.average) name_out_of_memory_inside_update(parts_.updates, [&] { parts_.average->update(result); });
  ++parts_.updates;
  parts_.half_updated = false;
  if (decision.was_clipped) ++parts_.clipped;
  // The update is still open, as in update_end, so the hook does not run at an update boundary.
  if (parts_.has_ladder()) {
    if (auto const rung = parts_.ladder.updated())
      parts_.observer->observe(event::rung_released{parts_.updates, to_string(*rung), relief().pieces});
  }
  return close(decision, result);
}

KEEL_BODY step_outcome step_engine::skip(update_decision const& decision) {
  reason why = decision.skip_reason.value_or(parts_.nonfinite_gradient_reason());
  // At the floor the scale cannot be lowered further, so the overflow counts as a non-finite gradient (P07).
  bool const at_floor =
      why == reason::scale_overflow && parts_.recipe().nonfinite.kind != nonfinite::kind::raise && parts_.scaler.is_at_floor();
  if (at_floor) why = reason::nonfinite_gradient;
  std::string const origin = decision.facts.origin.empty() ? trace_incident(decision, why) : decision.facts.origin;
  ++parts_.skipped;
  parts_.pass.layers().forget(parts_.updates + 1);
  if (at_floor) parts_.scaler.hold_at_floor();
  // Back off before calling the hooks, which may throw: the scale on the device has backed off already.
  if (why == reason::scale_overflow) parts_.scaler.update(true);
  step_outcome result = close(decision, result::skipped{why, decision.where, origin});
  if (why == reason::scale_overflow) return result;
  parts_.guards.skipped(why, decision.where, origin, decision.loss, decision.norm, parts_.updates + 1);
  return result;
}

KEEL_BODY std::string step_engine::trace_incident(update_decision const& decision, reason why) {
  if (parts_.ranks.shards_parameters() && parts_.recipe().incident.kind != incident::kind::off)
    return "not traced, because under keel::shard::zero<3> a rank cannot run the forward pass alone";
  if (!traces_incidents() || !parts_.trace.start_trace(why)) return "";
  bool const is_previous = decision.facts.is_deferred && open_;
  auto const forward = [this](any_micro_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* units) {
    return parts_.pass.rerun_forward(batch, begin, end, units, relief());
  };
  replay_settings const settings{decision.facts.loss_scale, relief().pieces, relief().length, parts_.pass.registered()};
  optimizer_shards::scope const shards(parts_.ranks.shards());
  traced_update traced = parts_.trace.locate_origin(is_previous, forward, settings);
  if (why == reason::nonfinite_buffer)
    traced.origin = parts_.trace.origin_of_buffer(parts_.trace.inputs_of(is_previous), decision.where);
  parts_.observer->observe(event::incident{parts_.updates, why, decision.where, decision.loss, decision.norm,
                                           decision.facts.loss_scale, traced, parts_.trace.inputs_of(is_previous), settings});
  return to_sentence(traced.origin);
}

KEEL_BODY step_outcome step_engine::close(update_decision const& decision, step_outcome result) {
  update_facts const& facts = decision.facts;
  if (!facts.is_deferred) parts_.pass.phases().stop();
  auto const losses = facts.named_losses.values([this](at::Tensor const& one) { return parts_.read(one); });
  // The update is still open, so a hook does not run at an update boundary, where the cursor would already include this update.
  parts_.observer->observe(event::update_end{parts_.updates, result, decision.loss, decision.norm, facts.loss_scale,
                                             facts.tokens, facts.rows, facts.is_deferred,
                                             facts.is_deferred ? facts.memory : parts_.pass.memory().end(),
                                             facts.is_deferred ? facts.times : parts_.pass.phases().take(), losses});
  show_layers(false);
  if (!parts_.decides_on_device) end_update();
  return result;
}

KEEL_BODY void step_engine::end_update() {
  open_ = false;
  parts_.micro_batches = 0;
  parts_.pass.close();
  replay_.clear();
  parts_.trace.end(parts_.pending.has_value());
}

KEEL_BODY void step_engine::drop_update() {
  // Runs even if restoring buffers and state throws.
  auto const ends = c10::make_scope_exit([this] { end_update(); });
  if (open_) dropped_update_shortage_ = parts_.pass.memory().interrupted();
  parts_.ranks.forget_backward();
  clear_gradients(parts_.parameters.tensors);
  if (parts_.engine != nullptr) {
    auto const shards = parts_.ranks.sharded_state();
    parts_.engine->forget_prepared();
  }
  previous_result_.reset();
  parts_.pass.drop();
}

KEEL_BODY void step_engine::show_layers(bool wait) {
  while (auto const found = parts_.pass.layers().take(wait))
    parts_.observer->observe(event::layers_measured{found->update, *found});
}

// Between updates.

KEEL_BODY void step_engine::unfreeze(std::vector<at::Tensor> const& which, double rate) {
  settle();
  if (!at_boundary())
    throw error("E12",
                "unfreeze() was called during an open update. Call it between updates, such as at the beginning of an epoch.");
  parts_.require_average_swapped_out();
  parts_.ranks.require_trainable(which);
  // Before anything is changed, because it may fail.
  auto const whole = gather_parameters();
  std::size_t const before = parts_.parameters.tensors.size();
  if (!add_trained_group(parts_.model, parts_.optimizer, parts_.parameters, which, rate)) return;
  parts_.schedule.add_group(rate);
  parts_.pass.parameters_changed();
  if (parts_.average) parts_.average->add(parts_.parameters, before);
  parts_.ranks.parameters_changed();
  ++unfrozen_groups_;
}

KEEL_BODY bool step_engine::refreeze_last_group() {
  if (unfrozen_groups_ == 0) return false;
  --unfrozen_groups_;
  std::size_t const count = remove_trained_group(parts_.model, parts_.optimizer, parts_.parameters);
  parts_.schedule.remove_last_group();
  parts_.pass.parameters_changed();
  if (parts_.average) parts_.average->remove_last(count);
  parts_.ranks.parameters_changed();
  return true;
}

KEEL_BODY void step_engine::change_numbers(numbers const& changes) {
  settle();
  if (!at_boundary())
    throw error("E12",
                "change() was called during an open update. Call it in an epoch_begin or evaluated hook, or between updates.");
  config present = parts_.current();
  detail::change_numbers(present, parts_.numbers.recipe(), changes);
  parts_.context.change(present);
  apply_numbers(present);
}

KEEL_BODY void step_engine::apply_numbers(config const& present) {
  parts_.numbers.change(present);
  parts_.pass.apply_numbers(present);
}

KEEL_BODY void step_engine::set_length(std::int64_t updates) {
  parts_.context.set_length(updates);
  parts_.schedule.set_run_length(updates);
}

KEEL_BODY void step_engine::restore_on_skip(torch::nn::Module& other) {
  parts_.pass.buffers().add(other);
  parts_.trace.add(other);
  parts_.ranks.add_shared_model(other);
}

KEEL_BODY void step_engine::forget(torch::nn::Module& other) {
  parts_.trace.remove(other);
  parts_.ranks.remove_shared_model(other);
}

KEEL_BODY void step_engine::verify_replicas() {
  parts_.ranks.abort_peers_on_exception([&] { parts_.ranks.verify_replicas(); });
}

KEEL_BODY traced_update step_engine::replay(update_inputs const& kept, update_trace::forward_pass const& forward,
                                            replay_settings settings) {
  settings.program = parts_.pass.registered();
  return parts_.trace.locate_origin(kept, forward, settings);
}

KEEL_BODY moving_average* step_engine::average_or_null() {
  settle();
  return parts_.average ? &*parts_.average : nullptr;
}

template <class Archive>
void step_engine::visit_all(Archive& archive) {
  settle();
  // During an open update, such as one being traced, the device keeps its loss scale.
  if (!open_) parts_.scale_on_device.reset();
  archive("updates", parts_.updates);
  archive("skipped", parts_.skipped);
  archive("clipped", parts_.clipped);
  parts_.guards.visit(archive);
  archive("ladder", parts_.ladder);
  archive("scaler", parts_.scaler);
  archive("schedule", parts_.schedule);
  clip_state_field clip{*parts_.clip};
  archive("clip", clip);
  if (parts_.numbers.are_open()) {
    // Unless change() set a number, a resume uses the program's value, which may differ from the saved one.
    bool is_changed = parts_.numbers.is_changed();
    config present = parts_.current();
    archive("numbers_changed", is_changed);
    archive("accumulate_now", present.accumulate.count);
    archive("clip_now", present.clip.limit);
    if constexpr (requires { Archive::reads; }) apply_numbers(is_changed ? present : parts_.recipe());
  }
  if (parts_.average) archive("average", *parts_.average);
  if constexpr (requires { Archive::reads; }) {
    parts_.repeated.forget();
    parts_.pass.layers().forget();
  }
}
KEEL_BODY void step_engine::visit(state_writer& archive) { visit_all(archive); }
KEEL_BODY void step_engine::visit(state_reader& archive) { visit_all(archive); }

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
