// The bodies of run_loop.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/ScopeExit.h>

#include <chrono>
#include <keel/attention/attention.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/collective/words_of_rank.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/run_loop.hpp>
#include <keel/trainer/run_of_ranks.hpp>
#include <keel/trainer/spoiled.hpp>
#include <keel/trainer/summary.hpp>
#include <keel/trainer/watched_run.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY run_loop::run_loop(step_engine& step, trainer_options& options, alarms_of_run const& alarms,
                             environment const& machine)
    : step_(step),
      options_(options),
      console_(options.console, options.mode, options.console_every),
      directory_(on_all_ranks(step.ranks().world(), [&] { return open_directory(options, saves()); })),
      progress_(recipe().evaluation, alarm_watch(alarms.all, schedule::warmup_updates(recipe().schedule, length()))),
      save_signal_(saves() && options.stop_on_signals),
      log_(directory_.get(), console_, progress_.record, options),
      evaluator_(
          {checkpointed_, recipe(), step.phases(), step.ranks().world(), machine, progress_, log_, hooks_, options.clock()}),
      checkpoints_(recipe(), options, machine, directory_.get(), checkpointed_, progress_, log_, hooks_,
                   run_of_ranks(step.ranks().world())),
      timer_(options.clock()),
      observer_(step, log_, options, directory_.get(), alarms.write_incidents),
      was_seeded_(is_seeded(recipe().determinism)),
      started_(options.clock().now()),
      watch_(recipe().timeout, is_watched(recipe().timeout)
                                   ? watched(recipe().timeout, directory_.get(), options, step.ranks().world(),
                                             [this] { return step_.phases().shown(); })
                                   : watched_run()) {
  step_.observe_with(*this);
  step_.phases().use(options_.clock());
  if (directory_) step_.ladder().offload_to(directory_->root());
  step_.restore_on_skip(checkpoints_.registered());
  evaluator_.restore(checkpoints_.registered());
  if (is_watched(recipe().timeout)) evaluator_.before_each_batch([this] { watch_.moved(); });
}

KEEL_BODY run_loop::~run_loop() {
  if (begun_ && std::uncaught_exceptions() > unwinding_) log_.left_by_exception(step_.updates(), own_loop_threw_);
}

// The run.

KEEL_BODY outcome run_loop::fit(training_data& data) {
  signal_listener const listener(options_.stop_on_signals);
  deterministic_scope const deterministic(recipe().determinism.kind == determinism::kind::strict);
  try {
    step_.ranks().begin_run();
    begin_run();
    outcome const ended = end_run(run_epochs(data, listener));
    if (ended.is<result::finished>()) listener.defer();
    return ended;
  } catch (std::exception const& thrown) {
    auto const limit = limit_reached(thrown, recipe());
    fail(thrown, limit.has_value());
    if (!limit) throw;
    hooks_(event::run_end{*limit});
    return *limit;
  }
}

KEEL_BODY std::int64_t run_loop::length() const {
  bool const accumulates_otherwise = step_.present_value().accumulate.count != recipe().accumulate.count;
  return accumulates_otherwise ? options_.updates : length_of(options_, recipe().accumulate.count);
}

KEEL_BODY void run_loop::require_length() {
  if (!is_length_open()) return;
  step_.set_length(length_of(options_, step_.present_value().accumulate.count));
  progress_.record.alarms.set_warmup(schedule::warmup_updates(recipe().schedule, step_.facts().updates));
}

KEEL_BODY bool run_loop::resume() {
  require_length();
  return checkpoints_.resume();
}

KEEL_BODY void run_loop::begin_run() {
  bool const resumed = resume();
  if (begun_) return;
  auto const& world = step_.ranks().world();
  // A second fit of one trainer goes on; only the first of a run that was not resumed begins it.
  if (!resumed && progress_.record.attempts == 0) {
    begin_random(recipe().determinism, step_.parameters().device, world.rank());
    log_.begin(recipe());
    if (!was_seeded_ && world.rank() == 0) log_.not_seeded(step_.updates());
  }
  log_.write_recipe(recipe());
  if (recipe().attention.kind == attention_kind::fused && attention_kernel(attention_kind::fused) != attention_kind::fused)
    log_.no_fused_attention(step_.updates());
  if (directory_) log_.weaker_promises(step_.updates());
  if (world.size() > 1) log_.begins_on(step_.updates(), world);
  if (options_.operations_per_token > 0.0) observer_.use_operations(options_.operations_per_token);
  started_ = options_.clock().now();
  step_.phases().restart();
  if (resumed) observer_.data_moved();
  timer_.begin_run();
  tokens_before_ = progress_.record.tokens;
  evaluator_.require_any();
  hooks_(event::run_begin{step_.updates(), resumed});
  checkpoints_.begin();
  checkpoints_.note_random();
  if (directory_) observer_.begins(resumed);
  begun_ = true;
  step_.phases().enter(run_phase::data);
  watch_.begin(step_.updates());
}

KEEL_BODY outcome run_loop::run_epochs(training_data& data, signal_listener const& listener) {
  data_cursor& cursor = progress_.cursor;
  data_moved_ = false;  // your own loop does not read it
  std::int64_t const epochs = options_.epochs > 0 ? options_.epochs : (length() > 0 ? 0 : 1);
  if (length_reached()) {
    require_work_left(step_.updates(), length());
    char const* const where = ended_ ? "this trainer has made its" : "the run directory holds a run that finished its";
    console_.notice(formatted("nothing left to do: %s %lld updates", where, static_cast<long long>(length())));
    return result::finished{step_.updates()};
  }
  if (ended_early()) {
    console_.notice("nothing left to do: the run directory holds a run that stopped early");
    return result::finished{step_.updates()};
  }
  if (ended_ && epochs > 0 && cursor.epoch >= epochs)
    console_.notice("nothing left to do: this trainer has made its " + std::to_string(epochs) + " epochs");
  for (;;) {
    // A single-pass range has one epoch, also after a resume at its end.
    while ((epochs == 0 || cursor.epoch < epochs) && (data.is_repeatable() || cursor.epoch == 0)) {
      if (auto ended = run_epoch(data, listener)) return *ended;
    }
    auto const last = close_partial_update();
    if (last && last->gave_up()) return *last->gave_up();
    // The last update may have sent the run back, and then there is data again.
    if (!std::exchange(data_moved_, false)) return result::finished{step_.updates()};
  }
}

KEEL_BODY std::optional<outcome> run_loop::run_epoch(training_data& data, signal_listener const& listener) {
  data_cursor& cursor = progress_.cursor;
  data.take_order(!step_.ranks().is_shared(), options_.accept_changed_recipe);
  std::optional<outcome> ended;
  try {
    auto const closes = c10::make_scope_exit([&] { data.close(); });
    data.open([&](std::int64_t position) { hooks_(event::epoch_begin{cursor.epoch, position}); });
    for (; data.has_batch(); data.next()) {
      ended = train_one(data, listener);
      if (ended) break;
    }
    if (!ended) require_batches(cursor);
    if (!ended && !data_moved_) step_.ranks().end_of_data(step_.attempted());
  } catch (data_ended const& by) {
    log_.data_ended(step_.updates(), by.rank);
    end_is_said_ = true;
  }
  if (std::exchange(data_moved_, false)) return std::nullopt;
  if (ended) return ended;
  drop_uneven_update();
  close_epoch();
  if (std::exchange(data_moved_, false)) return std::nullopt;
  if (length_reached() || ended_early()) return result::finished{step_.updates()};
  return std::nullopt;
}

KEEL_BODY std::optional<outcome> run_loop::train_one(training_data& data, signal_listener const& listener) {
  if (is_of_ranks()) signal_ = listener.received();
  step_outcome const taken = data.train();
  if (taken.gave_up()) return *taken.gave_up();
  if (!step_.at_boundary()) return std::nullopt;
  // Back in the data: the walk ends here and begins again at the cursor.
  if (data_moved_) return result::finished{step_.updates()};
  // Where the length falls on the end of an epoch, that is evaluated and saved as the others are.
  std::int64_t const end = data.epoch_length(options_.batches_per_epoch, !step_.ranks().is_shared());
  if (length_reached() && progress_.cursor.position == end) close_epoch();
  if (data_moved_ || length_reached() || ended_early()) return result::finished{step_.updates()};
  int signal = 0;
  if (is_of_ranks()) {
    signal = step_.ranks().asked().signal;
    if (!asks_to_stop()) return std::nullopt;
    step_.ranks().forget_asked();
    stop_requested_ = false;
  } else {
    signal = listener.received();
    if (signal == 0 && !stop_requested_.exchange(false)) return std::nullopt;
  }
  step_.settle();
  return result::stopped{signal, step_.updates()};
}

// Micro-batches.

KEEL_BODY step_outcome run_loop::take(std::optional<batch_size> const& size, c10::function_ref<batch_contents()> contents,
                                      c10::function_ref<step_outcome()> run) {
  before_micro_batch();
  if (size) begin_console(size->rows, size->tokens);
  return after_micro_batch(cursor_.taking([&] {
    step_.ranks().begin_call();
    check_batch([&] { observer_.look_at(contents, progress_.cursor); });
    return run();
  }));
}

KEEL_BODY void run_loop::check_batch(c10::function_ref<void()> run) {
  try {
    run();
  } catch (...) {
    // Rethrown, once the other ranks know.
    step_.ranks().tell();
    step_.drop_update();
    throw;
  }
}

KEEL_BODY step_outcome run_loop::take_in_own_loop(c10::function_ref<step_outcome()> call) {
  return in_own_loop([&] {
    deterministic_scope const deterministic(recipe().determinism.kind == determinism::kind::strict);
    if (!begun_) begin_run();
    return call();
  });
}

KEEL_BODY void run_loop::before_micro_batch() {
  step_.phases().stop();
  if (is_of_ranks()) {
    if (save_signal_.take_request()) checkpoints_.ask();
    step_.ranks().ask({signal_, stop_requested_.load(std::memory_order_relaxed), checkpoints_.wants_save()});
  }
  if (!step_.at_boundary()) return;
  observer_.before_update(progress_.record.attempts);
  timer_.begin_update(progress_.cursor.epoch);
  cursor_.begin();
}

KEEL_BODY void run_loop::begin_console(std::int64_t rows, std::int64_t tokens) {
  if (std::exchange(console_begun_, true)) return;
  console_.begin(length(), tokens != rows ? "tokens" : "rows");
  log_.counts_tokens(tokens != rows);
}

KEEL_BODY step_outcome run_loop::after_micro_batch(step_outcome taken) {
  phase_clock::afterwards const waits{step_.phases(), run_phase::data};  // until the next micro-batch
  gave_up_ = taken.gave_up() ? std::optional(*taken.gave_up()) : std::nullopt;
  // An update that gives up consumed nothing: the checkpoint that follows must begin with its first batch again.
  if (gave_up_) {
    cursor_.rewind();
    return taken;
  }
  cursor_.advance();
  if (!step_.at_boundary()) return taken;
  step_outcome known = known_now(taken);
  after_update(known);
  return known;
}

KEEL_BODY own_backward run_loop::open_own(std::int64_t rows, std::int64_t tokens) {
  return {*this, step_.parameters().device,  step_.environment().autocast(recipe().precision.kind), step_.relief(),
          rows,  tokens == 0 ? rows : tokens};
}
KEEL_BODY void run_loop::begin_own() {
  if (!begun_) begin_run();
  before_micro_batch();
  cursor_.closing([this] { step_.begin_own(); });
}
KEEL_BODY step_outcome run_loop::end_own(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) {
  begin_console(rows, tokens);
  return in_own_loop([&] { return after_micro_batch(cursor_.taking([&] { return step_.end_own(loss, rows, tokens); })); });
}
KEEL_BODY void run_loop::abandon_own() {
  step_.abandon_own();
  cursor_.rewind();
  checkpoints_.restore_random();
}

KEEL_BODY step_outcome run_loop::known_now(step_outcome const& taken) {
  if (!step_.is_pending()) return taken;
  std::int64_t const next = step_.updates() + 1;
  bool const last = length() > 0 && next >= length();
  bool const wanted = last || checkpoints_.is_save_due(next) || evaluator_.is_due(next);
  return wanted ? step_.settle().value_or(taken) : taken;
}

KEEL_BODY std::optional<step_outcome> run_loop::flush() {
  return in_own_loop([this] { return close_partial_update(); });
}

KEEL_BODY std::optional<step_outcome> run_loop::close_partial_update() {
  auto last = step_.has_open_update() ? cursor_.closing([this] { return step_.flush(); }) : step_.flush();
  if (last && last->gave_up()) gave_up_ = *last->gave_up();
  if (last) last->gave_up() ? cursor_.rewind() : after_update(*last);
  return last;
}

KEEL_BODY void run_loop::drop_uneven_update() {
  if (!is_of_ranks()) return;
  std::int64_t const epoch = progress_.cursor.epoch;
  auto const end = find_uneven_end(step_.ranks().world(), step_.open_micro_batches(), std::exchange(end_is_said_, false));
  if (end) drop_open_update();
  progress_.cursor.epoch = epoch;  // of an update that began in the one before
  if (end && !end->is_said) log_.data_ended(step_.updates(), end->rank);
}

KEEL_BODY void run_loop::drop_open_update() {
  if (step_.has_open_update()) {
    cursor_.rewind();
    checkpoints_.restore_random();
  }
  step_.drop_update();
}

KEEL_BODY void run_loop::change(c10::function_ref<void()> change_numbers) {
  config const before = step_.present_value();
  change_numbers();
  log_.numbers_changed(step_.updates(), before, step_.present_value());
}

// Boundaries.

KEEL_BODY void run_loop::after_update(step_outcome const& last) {
  bool const updated = last.updated() != nullptr;
  if ((updated && evaluator_.is_due(step_.updates())) || evaluator_.is_due_by_epochs()) evaluate_recipe();
  while_saving([&] { save_at_boundary(updated, is_save_asked()); });
  checkpoints_.note_random();
}

KEEL_BODY void run_loop::end_epoch() {
  in_own_loop([this] {
    drop_uneven_update();
    close_epoch();
  });
}

KEEL_BODY void run_loop::close_epoch() {
  if (!begun_) begin_run();
  hooks_(event::epoch_end{progress_.cursor.epoch, progress_.cursor.position});
  ++progress_.cursor.epoch;
  progress_.cursor.position = 0;
  progress_.cursor.in_epoch = false;
  observer_.end_epoch();
  if (!step_.at_boundary()) return;  // both come after the update that spans two epochs
  after_epoch();
  checkpoints_.note_random();
}

KEEL_BODY void run_loop::after_epoch() {
  // The outcome of an update that is under way on a device belongs to this epoch.
  bool const evaluates = evaluator_.is_due_by_epochs();
  bool const saves_by_epochs = recipe().checkpoint.kind == checkpoint::kind::every_epochs;
  if (evaluates || saves_by_epochs) step_.settle();
  if (evaluates) evaluate_recipe();
  // Also where the cadence is another one: the evaluation may be the best, which is saved at once.
  if (saves() && (evaluates || saves_by_epochs)) while_saving([this] { save_at_boundary(false, false); });
}

KEEL_BODY void run_loop::save_at_boundary(bool updated, bool asked) {
  if (checkpoints_.at_boundary(updated, asked, [this] { return slowest_update(); })) move_data();
}

template <class Call>
void run_loop::while_saving(Call const& call) {
  phase_clock::scope const saving(step_.phases(), run_phase::saving);
  call();
  watch_.moved();
}

KEEL_BODY void run_loop::save() {
  while_saving([this] { checkpoints_.save(); });
}
KEEL_BODY void run_loop::wait_for_save() {
  while_saving([this] { checkpoints_.wait_for_save(); });
}

KEEL_BODY bool run_loop::is_save_asked() { return is_of_ranks() ? step_.ranks().asked().saves : save_signal_.take_request(); }

KEEL_BODY bool run_loop::asks_to_stop() const {
  auto const& asked = step_.ranks().asked();
  return asked.signal != 0 || asked.stops;
}

KEEL_BODY bool run_loop::should_stop(c10::function_ref<int()> signal) const {
  if (is_of_ranks()) {
    signal_ = signal();
    return step_.at_boundary() && (asks_to_stop() || ended_early());
  }
  return step_.at_boundary() && (signal() != 0 || stop_requested_.load(std::memory_order_relaxed) || ended_early());
}

KEEL_BODY void run_loop::evaluate_recipe() {
  // Until it has its value, the state lacks it, and a run that went on from there would not be this one.
  checkpoints_.mark_incomplete(true);
  auto const value = agree(world_of_one(), evaluator_.evaluate_all(), reduce::mean{});
  checkpoints_.evaluated(value);
  if (schedule::judges_evaluations(recipe().schedule)) step_.schedule().evaluated(value.value(), recipe().evaluation.larger);
  checkpoints_.mark_incomplete(false);
  bool const ends = progress_.evaluations.evaluated(value, step_.updates());
  progress_.record.evaluated_epochs = progress_.cursor.epoch;
  act_on_alarms();
  if (ends) log_.stopped_early(step_.updates(), progress_.evaluations.why());
}

// What the step says.

KEEL_BODY void run_loop::observe(event::update_end const& event) {
  cursor_.close(event.late);
  watch_.updated(event.update);
  if (event.result.updated()) checkpoints_.updated(event.loss);
  checkpoints_.mark_incomplete(true);
  hooks_(event);
  // After the hooks, so that the record of this update has what they log.
  record_update(event);
  checkpoints_.mark_incomplete(false);
}
KEEL_BODY void run_loop::observe(event::incident const& event) {
  observer_.incident(event, checkpoints_, cursor_.began_at(), progress_.record.attempts);
  hooks_(event);
}
KEEL_BODY void run_loop::observe(event::layers_measured const& event) {
  log_.layers(event.record);
  hooks_(event);
}
KEEL_BODY void run_loop::observe(event::out_of_memory const& event) {
  log_.out_of_memory(event);
  observer_.symptom(event.slow ? "the allocator lost time" : "memory ran out");
  hooks_(event);
}
KEEL_BODY void run_loop::observe(event::rung_released const& event) {
  log_.rung_released(event);
  hooks_(event);
}

KEEL_BODY void run_loop::record_update(event::update_end const& event) {
  bool const late = event.late && step_.has_open_update();
  auto const time = timer_.end_update(late);
  // skip<N> counts silently, apart from the record; warn<N> speaks.
  bool const warns = recipe().nonfinite.kind == nonfinite::kind::warn;
  for (auto const& [name, value] : event.losses) log_.log(metric<reduce::mean>("loss/" + name).reduced(world_of_one(), value));
  if (step_.ranks().is_shared()) log_.ranks_took(step_.updates(), step_.ranks().times());
  log_.update(event,
              {time.epoch, step_.learning_rate(), step_.skipped(), time.milliseconds, checkpoints_.rollbacks(),
               observer_.operations_per_token(), observer_.peak(), observer_.gpu(), late},
              warns);
  act_on_alarms();
  if (auto const words = log_.take_slowdown(); !words.empty()) observer_.symptom(words);
}

KEEL_BODY void run_loop::move_data() {
  data_moved_ = true;
  observer_.data_moved();
}

KEEL_BODY void run_loop::act_on_alarms() {
  if (recipe().health.kind == health::kind::off) return;
  for (raised_alarm const& one : log_.take_alarms()) {
    hooks_(event::alarm_raised{step_.updates(), one});
    observer_.symptom(std::string("alarm ") + one.what->name);
    if (one.does == health::action::stop) request_stop();
    if (saves() && one.does == health::action::checkpoint) checkpoints_.ask();
  }
}

// The end.

KEEL_BODY outcome run_loop::finish(int signal) {
  return in_own_loop<true>([&] {
    if (step_.has_open_update()) log_.partial_update(step_.updates(), step_.open_micro_batches());
    drop_open_update();
    if (is_of_ranks()) {
      // Of a signal that came since the others know nothing.
      if (step_.ranks().is_shared()) signal = step_.ranks().asked().signal;
      if (asks_to_stop()) stop_requested_ = true;
    }
    bool const stops = signal != 0 || stop_requested_.load(std::memory_order_relaxed);
    step_.settle();
    if (gave_up_) return end_run(*std::exchange(gave_up_, std::nullopt), true);
    return end_run(stops ? outcome(result::stopped{signal, step_.updates()}) : outcome(result::finished{step_.updates()}),
                   true);
  });
}

KEEL_BODY outcome run_loop::end_run(outcome const& ended, bool by_program) {
  step_.settle();
  step_.verify_replicas();
  step_.phases().stop();
  step_.finish_layers();
  while_saving([this] { checkpoints_.end(); });
  observer_.end();
  std::string const words = ending(ended);
  double const seconds = std::chrono::duration<double>(options_.clock().now() - started_).count();
  console_.summary(summary_rows(words, step_.updates(), step_.skipped(), step_.clip_fraction(), progress_.record,
                                progress_.record.tokens - tokens_before_, seconds, options_.run_directory.string(),
                                step_.relief(), log_.timeline()));
  log_.ended(ended, step_.updates(), words, why_finished(length_reached(), progress_.evaluations, by_program));
  watch_.end();
  hooks_(event::run_end{ended});
  begun_ = false;
  ended_ = true;
  forget_stops();
  return ended;
}

KEEL_BODY void run_loop::forget_stops() {
  stop_requested_ = false;
  signal_ = 0;
  step_.ranks().forget_asked();
}

template <bool EndsRun, class Call>
std::invoke_result_t<Call const&> run_loop::in_own_loop(Call const& call) {
  try {
    own_loop_threw_.clear();
    return call();
  } catch (std::exception const& thrown) {
    own_loop_threw_ = first_line(thrown);
    bool const is_of_ranks = dynamic_cast<world_error const*>(&thrown) != nullptr && !step_.ranks().all_know();
    if (begun_ && (EndsRun || is_of_ranks)) fail(thrown);
    throw;
  }
}

KEEL_BODY void run_loop::fail(std::exception const& thrown, bool of_all) {
  if (!of_all) step_.ranks().leave(first_line(thrown).c_str());
  observer_.failing(thrown, evaluator_.is_inside());
  drop_open_update();
  begun_ = false;
  forget_stops();
  auto const try_to = [](auto const& call) {
    try {
      call();
    } catch (std::exception const&) {
      // What ends the run is the exception that is on its way; a save's end is an event in the record, and older checkpoints are whole.
    }
  };
  bool const device_may_wait = dynamic_cast<world_error const*>(&thrown) != nullptr && !step_.ranks().all_know();
  if (!device_may_wait) try_to([this] { step_.settle(); });
  try_to([&] { while_saving([&] { checkpoints_.save_after(thrown, step_.ranks().all_know()); }); });
  observer_.end();
  if (is_of_ranks()) log_.leave_record_of(step_.ranks().world(), thrown.what());
  log_.failed(step_.updates(), first_line(thrown), observer_.failure());
  watch_.end();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
