// Definitions for trainer_loop.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/ScopeExit.h>

#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/trainer/checkpoint_collectives.hpp>
#include <keel/trainer/run_ending_errors.hpp>
#include <keel/trainer/trainer_loop.hpp>
#include <string>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY trainer_loop::trainer_loop(step_engine& step, trained_models& models, trainer_options& options,
                                     run_alarms const& alarms, environment const& machine)
    : run_loop({step.recipe_value(), models, step.ranks(), shard::is_distributed(step.recipe_value().shard), step.phases(),
                options, machine},
               alarms),
      step_(step) {
  step_.set_observer(*this);
  step_.phases().use(options.clock());
  if (directory_) step_.ladder().offload_to(directory_->root());
  step_.restore_on_skip(checkpoints_.registered());
}

// The run.

KEEL_BODY outcome trainer_loop::fit(training_data& data) {
  signal_listener const listener(options().stop_on_signals);
  deterministic_scope const deterministic(recipe().determinism.kind == determinism::kind::strict);
  try {
    step_.ranks().begin_run();
    begin();
    outcome const ended = end_run(run_epochs(data, listener), false);
    if (ended.is<result::finished>()) listener.defer();
    return ended;
  } catch (std::exception const& thrown) {
    auto const limit = outcome_at_skip_limit(thrown, recipe());
    fail(thrown, limit.has_value());
    if (!limit) throw;
    hooks_(event::run_end{*limit});
    return *limit;
  }
}

KEEL_BODY std::int64_t trainer_loop::length() const {
  bool const accumulates_otherwise = step_.current_config().accumulate.count != recipe().accumulate.count;
  return accumulates_otherwise ? options().updates : length_of(options(), recipe().accumulate.count);
}

KEEL_BODY void trainer_loop::require_length() {
  if (!is_length_pending()) return;
  step_.set_length(length_of(options(), step_.current_config().accumulate.count));
}

KEEL_BODY void trainer_loop::begin() {
  if (!begin_run()) return;
  step_.phases().enter(run_phase::data);
  watch_.begin(step_.updates());
}

KEEL_BODY outcome trainer_loop::run_epochs(training_data& data, signal_listener const& listener) {
  data_cursor& cursor = progress_.cursor;
  is_data_rewound_ = false;  // a program's own loop does not read it
  std::int64_t const epochs = options().epochs > 0 ? options().epochs : (length() > 0 ? 0 : 1);
  if (length_reached()) {
    require_work_left(step_.updates(), length());
    char const* const where = ended_ ? "this trainer has completed its" : "the run directory contains a run that completed its";
    console_.notice(formatted("nothing left to do: %s %lld updates", where, static_cast<long long>(length())));
    return result::finished{step_.updates()};
  }
  if (ended_early()) {
    console_.notice("nothing left to do: the run directory contains a run that stopped early");
    return result::finished{step_.updates()};
  }
  if (ended_ && epochs > 0 && cursor.epoch >= epochs)
    console_.notice("nothing left to do: this trainer has completed its " + std::to_string(epochs) + " epochs");
  for (;;) {
    // A single-pass range has one epoch, even after a resume at its end.
    while ((epochs == 0 || cursor.epoch < epochs) && (data.is_repeatable() || cursor.epoch == 0)) {
      if (auto ended = run_epoch(data, listener)) return *ended;
    }
    auto const last = close_partial_update();
    if (last && last->gave_up()) return *last->gave_up();
    // If the last update rolled the run back, there is data again.
    if (!std::exchange(is_data_rewound_, false)) return result::finished{step_.updates()};
  }
}

KEEL_BODY std::optional<outcome> trainer_loop::run_epoch(training_data& data, signal_listener const& listener) {
  data_cursor& cursor = progress_.cursor;
  data.adopt_data_order(!step_.ranks().is_shared(), options().accept_changed_recipe);
  std::optional<outcome> ended;
  try {
    auto const closes = c10::make_scope_exit([&] { data.close(); });
    data.open([&](std::int64_t position) { hooks_(event::epoch_begin{cursor.epoch, position}); });
    for (; data.has_batch(); data.next()) {
      ended = train_one(data, listener);
      if (ended) break;
    }
    if (!ended) require_batches(cursor);
    if (!ended && !is_data_rewound_) step_.ranks().end_of_data(step_.attempted());
  } catch (peer_data_exhausted const& by) {
    log_.emit("data_ended", step_.updates(), {{"rank", by.rank}});
    is_end_logged_ = true;
  }
  if (std::exchange(is_data_rewound_, false)) return std::nullopt;
  if (ended) return ended;
  drop_uneven_update();
  close_epoch();
  if (std::exchange(is_data_rewound_, false)) return std::nullopt;
  if (length_reached() || ended_early()) return result::finished{step_.updates()};
  return std::nullopt;
}

KEEL_BODY std::optional<outcome> trainer_loop::train_one(training_data& data, signal_listener const& listener) {
  if (is_distributed()) signal_ = listener.received();
  step_outcome const taken = data.train();
  if (taken.gave_up()) return *taken.gave_up();
  if (!step_.at_boundary()) return std::nullopt;
  // After a rollback the epoch ends here and starts again at the cursor.
  if (is_data_rewound_) return result::finished{step_.updates()};
  // If the run ends with an epoch, that epoch is evaluated and saved like any other.
  std::int64_t const end = data.epoch_length(options().batches_per_epoch, !step_.ranks().is_shared());
  if (length_reached() && progress_.cursor.position == end) close_epoch();
  if (is_data_rewound_ || length_reached() || ended_early()) return result::finished{step_.updates()};
  int signal = 0;
  if (is_distributed()) {
    signal = step_.ranks().requests().signal;
    if (!is_stop_requested()) return std::nullopt;
    step_.ranks().clear_requests();
    stop_requested_ = false;
  } else {
    signal = listener.received();
    if (signal == 0 && !stop_requested_.exchange(false)) return std::nullopt;
  }
  step_.settle();
  return result::stopped{signal, step_.updates()};
}

// Micro-batches.

KEEL_BODY step_outcome trainer_loop::take(std::optional<batch_size> const& size, c10::function_ref<batch_contents()> contents,
                                          c10::function_ref<step_outcome()> run) {
  before_micro_batch();
  if (size) begin_console(size->rows, size->tokens);
  return after_micro_batch(cursor_.run_micro_batch([&] {
    step_.ranks().begin_call();
    check_batch([&] { observer_.check_batch(contents, progress_.cursor); });
    return run();
  }));
}

KEEL_BODY void trainer_loop::check_batch(c10::function_ref<void()> run) {
  try {
    run();
  } catch (...) {
    // Rethrown after the other ranks were notified.
    step_.ranks().report_failure();
    step_.drop_update();
    throw;
  }
}

KEEL_BODY step_outcome trainer_loop::step_in_own_loop(c10::function_ref<step_outcome()> call) {
  return in_own_loop([&] {
    deterministic_scope const deterministic(recipe().determinism.kind == determinism::kind::strict);
    if (!begun_) begin();
    return call();
  });
}

KEEL_BODY void trainer_loop::before_micro_batch() {
  step_.phases().stop();
  if (is_distributed()) step_.ranks().ask(requests(signal_));
  if (!step_.at_boundary()) return;
  begin_update();
  cursor_.begin();
}

KEEL_BODY step_outcome trainer_loop::after_micro_batch(step_outcome taken) {
  phase_clock::afterwards const waits{step_.phases(), run_phase::data};  // until the next micro-batch
  gave_up_ = taken.gave_up() ? std::optional(*taken.gave_up()) : std::nullopt;
  // An update that gave up consumed nothing, so the next checkpoint must start with its first batch.
  if (gave_up_) {
    cursor_.rewind();
    return taken;
  }
  cursor_.advance();
  if (!step_.at_boundary()) return taken;
  step_outcome known = settle_if_needed(taken);
  after_update(known.updated() != nullptr);
  return known;
}

KEEL_BODY manual_backward trainer_loop::open_manual_backward(std::int64_t rows, std::int64_t tokens) {
  return {*this, step_.parameters().device,  step_.environment().autocast(recipe().precision.kind), step_.relief(),
          rows,  tokens == 0 ? rows : tokens};
}
KEEL_BODY void trainer_loop::begin_manual_backward() {
  if (!begun_) begin();
  before_micro_batch();
  cursor_.run_flush([this] { step_.begin_manual_backward(); });
}
KEEL_BODY step_outcome trainer_loop::end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) {
  begin_console(rows, tokens);
  return in_own_loop([&] {
    return after_micro_batch(cursor_.run_micro_batch([&] { return step_.end_manual_backward(loss, rows, tokens); }));
  });
}
KEEL_BODY void trainer_loop::abandon_manual_backward() {
  step_.abandon_manual_backward();
  cursor_.rewind();
  checkpoints_.restore_random();
}

KEEL_BODY step_outcome trainer_loop::settle_if_needed(step_outcome const& taken) {
  if (!step_.is_pending()) return taken;
  std::int64_t const next = step_.updates() + 1;
  bool const last = length() > 0 && next >= length();
  bool const wanted = last || checkpoints_.is_save_due(next) || evaluator_.is_due(next);
  return wanted ? step_.settle().value_or(taken) : taken;
}

KEEL_BODY std::optional<step_outcome> trainer_loop::flush() {
  return in_own_loop([this] { return close_partial_update(); });
}

KEEL_BODY std::optional<step_outcome> trainer_loop::close_partial_update() {
  auto last = step_.has_open_update() ? cursor_.run_flush([this] { return step_.flush(); }) : step_.flush();
  if (last && last->gave_up()) gave_up_ = *last->gave_up();
  if (last) last->gave_up() ? cursor_.rewind() : after_update(last->updated() != nullptr);
  return last;
}

KEEL_BODY void trainer_loop::drop_uneven_update() {
  if (!is_distributed()) return;
  std::int64_t const epoch = progress_.cursor.epoch;
  auto const end = find_uneven_end(step_.ranks().world(), step_.open_micro_batches(), std::exchange(is_end_logged_, false));
  if (end) drop_open_update();
  progress_.cursor.epoch = epoch;  // the discarded update may have begun in the previous epoch
  if (end && !end->is_logged) log_.emit("data_ended", step_.updates(), {{"rank", end->rank}});
}

KEEL_BODY void trainer_loop::drop_open_update() {
  if (step_.has_open_update()) {
    cursor_.rewind();
    checkpoints_.restore_random();
  }
  step_.drop_update();
}

KEEL_BODY void trainer_loop::change(c10::function_ref<void()> change_numbers) {
  config const before = step_.current_config();
  change_numbers();
  log_.numbers_changed(step_.updates(), before, step_.current_config());
}

KEEL_BODY void trainer_loop::end_epoch() {
  in_own_loop([this] {
    drop_uneven_update();
    if (!begun_) begin();
    close_epoch();
  });
}

KEEL_BODY bool trainer_loop::is_stop_requested() const {
  auto const& asked = step_.ranks().requests();
  return asked.signal != 0 || asked.stops;
}

KEEL_BODY bool trainer_loop::should_stop(c10::function_ref<int()> signal) const {
  if (is_distributed()) {
    signal_ = signal();
    return step_.at_boundary() && (is_stop_requested() || ended_early());
  }
  return step_.at_boundary() && (signal() != 0 || stop_requested_.load(std::memory_order_relaxed) || ended_early());
}

// Events of the step.

KEEL_BODY void trainer_loop::observe(event::update_end const& event) {
  cursor_.close(event.is_deferred);
  watch_.updated(event.update);
  if (event.result.updated()) checkpoints_.updated(event.loss);
  checkpoints_.set_incomplete(true);
  hooks_(event);
  // After the hooks, so that the record of this update has what they log. skip<N> does not warn on the console.
  record_update(event, event.is_deferred && step_.has_open_update(), recipe().nonfinite.kind == nonfinite::kind::warn);
  checkpoints_.set_incomplete(false);
}
KEEL_BODY void trainer_loop::observe(event::incident const& event) {
  record_incident(event, *models().all().front(), cursor_.began_at());
  hooks_(event);
}
KEEL_BODY void trainer_loop::observe(event::layers_measured const& event) {
  log_.layers(event.record);
  hooks_(event);
}
KEEL_BODY void trainer_loop::observe(event::out_of_memory const& event) {
  record_out_of_memory(event);
  hooks_(event);
}
KEEL_BODY void trainer_loop::observe(event::rung_released const& event) {
  log_.rung_released(event);
  hooks_(event);
}

KEEL_BODY outcome trainer_loop::finish(int signal) {
  return in_own_loop<true>([&] {
    if (step_.has_open_update()) log_.partial_update(step_.updates(), step_.open_micro_batches());
    drop_open_update();
    if (is_distributed()) {
      // Use the signal that the ranks agreed on: the other ranks do not know of a later one.
      if (step_.ranks().is_shared()) signal = step_.ranks().requests().signal;
      if (is_stop_requested()) stop_requested_ = true;
    }
    bool const stops = signal != 0 || stop_requested_.load(std::memory_order_relaxed);
    step_.settle();
    if (gave_up_) return end_run(*std::exchange(gave_up_, std::nullopt), true);
    return end_run(stops ? outcome(result::stopped{signal, step_.updates()}) : outcome(result::finished{step_.updates()}),
                   true);
  });
}

KEEL_BODY layer_detail trainer_loop::watches_layers() const {
  std::int64_t const next = step_.updates() + (step_.is_pending() ? 2 : 1);
  return observer_.layers_due(directory_ || hooks_.has_hook_for<event::layers_measured>(), next);
}

KEEL_BODY void trainer_loop::clear_stop_requests() {
  run_loop::clear_stop_requests();
  signal_ = 0;
}

template <bool EndsRun, class Call>
std::invoke_result_t<Call const&> trainer_loop::in_own_loop(Call const& call) {
  try {
    last_error_.clear();
    return call();
  } catch (std::exception const& thrown) {
    last_error_ = first_line(thrown);
    bool const has_world_failed =
        dynamic_cast<world_error const*>(&thrown) != nullptr && !step_.ranks().is_failure_collective();
    if (begun_ && (EndsRun || has_world_failed)) fail(thrown);
    throw;
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
