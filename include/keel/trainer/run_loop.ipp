// Definitions for run_loop.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <chrono>
#include <keel/attention/attention.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/write_rank_record.hpp>
#include <keel/core/error.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/trainer/checkpoint_collectives.hpp>
#include <keel/trainer/run_directory.hpp>
#include <keel/trainer/run_ending_errors.hpp>
#include <keel/trainer/run_loop.hpp>
#include <keel/trainer/summary.hpp>
#include <keel/trainer/watchdog_target.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY run_loop::run_loop(loop_context const& of, run_alarms const& alarms)
    : of_(of),
      console_(of.options.console, of.options.mode, of.options.console_every),
      directory_(on_all_ranks(of.ranks.world(), [&] { return open_directory(of.options, saves()); })),
      progress_(recipe().evaluation, alarm_watch(alarms.all, 0)),
      save_signal_(saves() && of.options.stop_on_signals),
      log_(directory_.get(), console_, progress_.record, of.options),
      evaluator_({of.models, recipe(), of.phases, of.ranks.world(), of.machine, progress_, log_, hooks_, of.options.clock()}),
      checkpoints_(recipe(), of.options, of.machine, directory_.get(), of.models, progress_, log_, hooks_,
                   checkpoint_collectives(of.ranks.world())),
      timer_(of.options.clock()),
      observer_(recipe(), of.models, of.phases, log_, of.options, directory_.get(), alarms.write_incidents),
      watch_(recipe().timeout, has_timeouts(recipe().timeout)
                                   ? make_watchdog_target(recipe().timeout, directory_.get(), of.options, of.ranks.world(),
                                                          [this] { return of_.phases.shown(); })
                                   : watchdog_target()),
      was_seeded_(is_seeded(recipe().determinism)),
      started_(of.options.clock().now()) {
  evaluator_.set_restored_state(checkpoints_.registered());
  if (has_timeouts(recipe().timeout)) evaluator_.set_before_batch_hook([this] { watch_.record_progress(); });
}

KEEL_BODY run_loop::~run_loop() {
  if (!begun_ || std::uncaught_exceptions() == unwinding_) return;
  observer_.end();
  log_.record_exception_exit(models().updates(), last_error_);
}

KEEL_BODY bool run_loop::begin_run() {
  bool const resumed = resume();
  if (begun_) return false;
  auto const& world = of_.ranks.world();
  // A second loop continues the run. Only the first loop of a run that was not resumed seeds the generators and begins the record.
  if (!resumed && progress_.record.attempts == 0) {
    // Seed the generator of the models' device. A run without models has no device: require one only if the recipe has a seed.
    bool const needs_device = is_seeded(recipe().determinism) || !models().all().empty();
    seed_generators(recipe().determinism, needs_device ? models().parameters().device : at::kCPU, world.rank());
    log_.begin(recipe());
    if (!was_seeded_ && world.rank() == 0) log_.emit("not_seeded", models().updates());
  }
  progress_.record.alarms.set_warmup(models().warmup_updates());
  log_.write_recipe(recipe());
  if (recipe().attention.kind == attention_kind::fused && attention_kernel(attention_kind::fused) != attention_kind::fused)
    log_.emit("no_fused_attention", models().updates());
  if (directory_) log_.log_weaker_guarantees(models().updates());
  if (world.size() > 1) log_.emit("ranks", models().updates(), {{"rank", world.rank()}, {"ranks", world.size()}});
  if (world.size() > 1 && directory_) remove_rank_record(world, directory_->root());
  observer_.begin();
  if (options().operations_per_token > 0.0) observer_.use_operations(options().operations_per_token);
  started_ = options().clock().now();
  of_.phases.restart();
  if (resumed) observer_.on_data_rewound();
  timer_.begin_run();
  tokens_before_ = progress_.record.tokens;
  evaluator_.require_evaluations();
  hooks_(event::run_begin{models().updates(), resumed});
  checkpoints_.begin();
  checkpoints_.capture_random_state();
  if (directory_) observer_.describe_begin(resumed);
  begun_ = true;
  return true;
}

KEEL_BODY void run_loop::begin_console(std::int64_t rows, std::int64_t tokens) {
  if (std::exchange(console_begun_, true)) return;
  console_.begin(length(), tokens != rows ? "tokens" : "rows");
  log_.set_shows_perplexity(tokens != rows);
}

KEEL_BODY void run_loop::begin_update() {
  observer_.before_update(progress_.record.attempts);
  timer_.begin_update(progress_.cursor.epoch);
}

KEEL_BODY pending_requests run_loop::requests(int signal) {
  if (save_signal_.take_request()) checkpoints_.request_save_from_training_thread();
  return {signal, stop_requested_.load(std::memory_order_relaxed), checkpoints_.should_request_save()};
}

// Boundaries.

KEEL_BODY void run_loop::after_update(bool updated) {
  if ((updated && evaluator_.is_due(models().updates())) || evaluator_.is_due_by_epochs()) evaluate_recipe();
  bool const asked = of_.ranks_agree ? of_.ranks.take_save_request() : save_signal_.take_request();
  while_saving([&] { save_at_boundary(updated, asked); });
  checkpoints_.capture_random_state();
}

KEEL_BODY void run_loop::close_epoch() {
  hooks_(event::epoch_end{progress_.cursor.epoch, progress_.cursor.position});
  ++progress_.cursor.epoch;
  progress_.cursor.position = 0;
  progress_.cursor.in_epoch = false;
  observer_.end_epoch();
  if (!models().at_boundary()) return;  // evaluation and save follow the update that spans two epochs
  after_epoch();
  checkpoints_.capture_random_state();
}

KEEL_BODY void run_loop::after_epoch() {
  // An update that is pending on a device belongs to this epoch.
  bool const evaluates = evaluator_.is_due_by_epochs();
  bool const saves_by_epochs = recipe().checkpoint.kind == checkpoint::kind::every_epochs;
  if (evaluates || saves_by_epochs) models().settle();
  if (evaluates) evaluate_recipe();
  // Even if saves have another cadence: this evaluation may be the best one, which is saved immediately.
  if (saves() && (evaluates || saves_by_epochs)) while_saving([this] { save_at_boundary(false, false); });
}

KEEL_BODY void run_loop::save_at_boundary(bool updated, bool asked) {
  // In seconds: an update and the evaluation that may follow it.
  auto const slowest = [this] { return timer_.slowest() / 1e3 + evaluator_.slowest(); };
  if (!checkpoints_.handle_boundary(updated, asked, slowest)) return;
  is_data_rewound_ = true;
  observer_.on_data_rewound();
}

template <class Call>
void run_loop::while_saving(Call const& call) {
  phase_clock::scope const saving(of_.phases, run_phase::saving);
  call();
  watch_.record_progress();
}

KEEL_BODY bool run_loop::resume() {
  before_resume();
  return checkpoints_.resume();
}
KEEL_BODY void run_loop::save() {
  while_saving([this] { checkpoints_.save(); });
}
KEEL_BODY void run_loop::wait_for_save() {
  while_saving([this] { checkpoints_.wait_for_save(); });
}

KEEL_BODY void run_loop::evaluate_recipe() {
  // A snapshot taken now would lack the evaluation's value, and a resume from it would diverge from this run.
  checkpoints_.set_incomplete(true);
  auto const value = agree(world_of_one(), evaluator_.evaluate_all(), reduce::mean{});
  checkpoints_.evaluated(value);
  models().evaluated(value.value(), recipe().evaluation.larger);
  checkpoints_.set_incomplete(false);
  bool const ends = progress_.evaluations.evaluated(value, models().updates());
  progress_.record.evaluated_epochs = progress_.cursor.epoch;
  act_on_alarms();
  if (ends) log_.emit("stopped_early", models().updates(), {{"message", progress_.evaluations.why()}});
}

KEEL_BODY void run_loop::record_update(event::update_end const& event, bool late, bool warns) {
  auto const time = timer_.end_update(late);
  for (auto const& [name, value] : event.losses) log_.log(metric<reduce::mean>("loss/" + name).reduced(world_of_one(), value));
  if (of_.ranks.times().slowest_ms > 0.0) log_.record_rank_timing(models().updates(), of_.ranks.times());
  log_.update(event,
              {time.epoch, models().learning_rate(), models().skipped(), time.milliseconds, checkpoints_.rollbacks(),
               observer_.operations_per_token(), observer_.peak(), observer_.gpu(), late},
              warns);
  act_on_alarms();
  if (auto const words = log_.take_slowdown(); !words.empty()) observer_.symptom(words);
}

KEEL_BODY void run_loop::record_out_of_memory(event::out_of_memory const& event, std::string const& part) {
  log_.out_of_memory(event, part);
  observer_.symptom(event.is_allocator_slow ? "the allocator was slow" : "memory ran out");
}

KEEL_BODY void run_loop::record_incident(event::incident const& event, run_part const& part, data_cursor const& began_at) {
  observer_.incident(event, part, checkpoints_, began_at, progress_.record.attempts);
}

KEEL_BODY void run_loop::require_no_open_update(char const* call) {
  models().settle();
  if (!models().at_boundary())
    throw error("E12", std::string("an update is open, and ") + call + " would discard it. Do this between updates.");
}

KEEL_BODY void run_loop::act_on_alarms() {
  if (recipe().health.kind == health::kind::off) return;
  for (raised_alarm const& one : log_.take_alarms()) {
    hooks_(event::alarm_raised{models().updates(), one});
    observer_.symptom(std::string("alarm ") + one.what->name);
    if (one.does == health::action::stop) request_stop();
    if (saves() && one.does == health::action::checkpoint) checkpoints_.request_save_from_training_thread();
  }
}

// The end.

KEEL_BODY outcome run_loop::end_run(outcome const& ended, bool by_program, bool saves_end) {
  models().settle();
  models().verify_replicas();
  of_.phases.stop();
  models().flush_layer_metrics();
  while_saving([&] { saves_end ? checkpoints_.end() : checkpoints_.wait_for_save(); });
  observer_.end();
  std::string const words = describe_outcome(ended);
  double const seconds = std::chrono::duration<double>(options().clock().now() - started_).count();
  if (!models().all().empty())
    console_.summary(summary_rows(words, models().updates(), models().skipped(), models().clip_fraction(), progress_.record,
                                  progress_.record.tokens - tokens_before_, seconds, options().run_directory.string(),
                                  models().relief(), log_.timeline()));
  log_.ended(ended, models().updates(), words, why_finished(length_reached(), progress_.evaluations, by_program));
  watch_.end();
  hooks_(event::run_end{ended});
  begun_ = false;
  ended_ = true;
  clear_stop_requests();
  return ended;
}

KEEL_BODY void run_loop::clear_stop_requests() {
  stop_requested_ = false;
  of_.ranks.clear_requests();
}

KEEL_BODY void run_loop::fail(std::exception const& thrown, bool is_failure_collective) {
  if (!is_failure_collective) of_.ranks.abort_peers(first_line(thrown).c_str());
  observer_.capture_shortage(thrown, evaluator_.is_evaluating_or_failed());
  drop_open_update();
  begun_ = false;
  clear_stop_requests();
  auto const try_to = [](auto const& call) {
    try {
      call();
    } catch (std::exception const&) {
      // The exception in flight ends the run. A failed save is an event in the record; older checkpoints are intact.
    }
  };
  bool const device_may_wait = dynamic_cast<world_error const*>(&thrown) != nullptr && !of_.ranks.is_failure_collective();
  if (!device_may_wait) try_to([this] { models().settle(); });
  try_to([&] { while_saving([&] { checkpoints_.save_after(thrown, of_.ranks.is_failure_collective()); }); });
  observer_.end();
  if (of_.ranks_agree && directory_) write_rank_record(of_.ranks.world(), directory_->root(), thrown.what());
  log_.failed(models().updates(), first_line(thrown), observer_.failure());
  watch_.end();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
