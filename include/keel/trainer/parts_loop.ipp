// Definitions for parts_loop.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/ScopeExit.h>

#include <cmath>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/gradients/saved_gradients.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/trainer/parts_loop.hpp>
#include <limits>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY parts_loop::parts_loop(config const& recipe, trained_models& parts, iteration_sync& ranks, phase_clock& phases,
                                 trainer_options& options, run_alarms const& alarms, environment const& machine)
    : run_loop({recipe, parts, ranks, ranks.is_shared(), phases, options, machine}, alarms), ranks_(ranks) {}

KEEL_BODY void parts_loop::guard(c10::function_ref<void()> call, bool ends_run) {
  ranks_.begin_call();
  last_error_.clear();
  try {
    call();
  } catch (std::exception const& thrown) {
    last_error_ = first_line(thrown);
    ranks_.record_exception(ranks_.is_failure_collective(), last_error_.c_str());
    ranks_.abort_peers(last_error_.c_str());
    if (ends_run && begun_) fail(thrown, true);
    throw;
  }
}

// The loops of the program.

KEEL_BODY parts_loop::program_loop::~program_loop() {
  of_.watch_.end();
  if (std::uncaught_exceptions() > unwinding_) of_.ranks_.abort_peers("an exception ended the training loop on this rank");
}

KEEL_BODY void parts_loop::program_loop::begin() {
  of_.begin();
  of_.of_.phases.enter(run_phase::data);
  of_.watch_.begin(of_.models().updates());
}

KEEL_BODY void parts_loop::program_loop::start(training_data& data, std::int64_t epochs) {
  data_ = &data;
  count_ = epochs > 0 ? epochs : of_.options().epochs > 0 ? of_.options().epochs : of_.length() > 0 ? 0 : 1;
  over_ = of_.is_over();
  if (!over_) find_batch();
}

KEEL_BODY void parts_loop::program_loop::start(std::int64_t until) {
  count_ = until;
  over_ = of_.is_over();
  find_iteration();
}

KEEL_BODY void parts_loop::program_loop::advance() {
  bool const should_continue = of_.end_iteration(true, signals_.received());
  if (data_ == nullptr) {
    over_ = !should_continue;
    of_.is_data_rewound_ = false;
    return find_iteration();
  }
  if (!should_continue) {
    // If the run ends with an epoch, that epoch is evaluated and saved like any other.
    std::int64_t const end = data_->epoch_length(of_.options().batches_per_epoch, !of_.ranks_.is_shared());
    if (of_.is_at_end() && of_.progress_.cursor.position == end) static_cast<void>(of_.end_epoch(0));
    return leave();
  }
  if (std::exchange(of_.is_data_rewound_, false)) {
    opened_ = false;
  } else {
    data_->next();
  }
  find_batch();
}

KEEL_BODY void parts_loop::program_loop::find_batch() {
  data_cursor& cursor = of_.progress_.cursor;
  for (;;) {
    if (count_ > 0 && cursor.epoch >= count_) return leave();
    if (!data_->is_repeatable() && cursor.epoch > 0) return leave();
    if (!opened_) {
      data_->adopt_data_order(!of_.ranks_.is_shared(), of_.options().accept_changed_recipe);
      data_->open([&](std::int64_t position) { of_.hooks_(event::epoch_begin{cursor.epoch, position}); });
      opened_ = true;
    }
    bool const has_batch = data_->has_batch();
    int const first_exhausted_rank = of_.find_rank_without_batch(has_batch, signals_);
    if (first_exhausted_rank < 0) break;
    if (has_batch) {
      of_.data_ended(first_exhausted_rank);
    } else {
      require_batches(cursor);
    }
    opened_ = false;
    data_->close();
    bool const should_continue = of_.end_epoch(signals_.received());
    if (std::exchange(of_.is_data_rewound_, false)) continue;
    if (!should_continue) return leave();
  }
  data_->train();
  of_.begin_iteration();
}

KEEL_BODY void parts_loop::program_loop::find_iteration() {
  over_ = over_ || of_.progress_.cursor.consumed >= count_;
  // Even at the end of the loop, so that requests of the last iteration are not lost.
  of_.find_rank_without_batch(true, signals_);
  if (over_) {
    if (of_.ranks_.is_shared() && !of_.was_stopped_) of_.should_continue(0);
  } else {
    of_.begin_iteration();
  }
}

KEEL_BODY void parts_loop::program_loop::leave() {
  over_ = true;
  data_->close();
}

KEEL_BODY void parts_loop::begin() {
  if (!begin_run()) return;
  signal_ = 0;
  was_stopped_ = false;
}

KEEL_BODY int parts_loop::find_rank_without_batch(bool has_batch, signal_listener const& signals) {
  phase_clock::scope const agreeing(of_.phases, run_phase::update);
  return ranks_.begin(has_batch, ranks_.is_shared() ? requests(signals.received()) : pending_requests());
}

KEEL_BODY void parts_loop::data_ended(int rank) {
  data_cursor const& cursor = progress_.cursor;
  if (cursor.position == 0)
    throw world_error("E25", "rank " + std::to_string(rank) + " has no batches in epoch " + std::to_string(cursor.epoch) +
                                 ". Check the data path and the filters of the data on that rank.");
  log_.emit("data_ended", models().updates(), {{"rank", rank}});
}

KEEL_BODY void parts_loop::begin_iteration() {
  if (!in_iteration_) {
    checkpoints_.capture_random_before_parts();
    if (models().at_boundary()) {
      begin_update();
      boundary_cursor_ = progress_.cursor;
    }
  }
  in_iteration_ = true;
  // A resume from a checkpoint taken during an iteration would repeat its whole batch.
  checkpoints_.set_incomplete(true);
}

KEEL_BODY bool parts_loop::end_iteration(bool consumed, int signal) {
  models().settle();
  if (consumed) {
    ++progress_.cursor.position;
    ++progress_.cursor.consumed;
  }
  in_iteration_ = false;
  watch_.record_progress();
  if (!models().at_boundary()) return true;
  bool const applied = record_iteration();
  checkpoints_.set_incomplete(false);
  after_update(applied);
  return should_continue(signal);
}

KEEL_BODY bool parts_loop::should_continue(int signal) {
  if (is_at_end()) return false;
  bool stops = false;
  if (ranks_.is_shared()) {
    signal = ranks_.requests().signal;
    stops = ranks_.requests().stops;
    ranks_.clear_requests();
  } else {
    stops = stop_requested_.load(std::memory_order_relaxed);
  }
  if (stops) stop_requested_ = false;
  was_stopped_ = stops || signal != 0;
  if (signal != 0) signal_ = signal;
  // The signal that stopped the other ranks may still reach this one, which must take part in the last save.
  if (signal != 0 && ranks_.is_shared() && !final_signal_listener_) final_signal_listener_.emplace(options().stop_on_signals);
  return !was_stopped_;
}

KEEL_BODY bool parts_loop::end_epoch(int signal) {
  close_epoch();
  return !models().at_boundary() || should_continue(signal);
}

KEEL_BODY bool parts_loop::record_iteration() {
  std::int64_t applied = 0, rows = 0, tokens = 0, clipped = 0;
  double loss = 0.0, squares = 0.0;
  std::optional<result::skipped> why;
  for (run_part* const one : models().all()) {
    auto figures = one->take_stats();
    applied += figures.applied;
    clipped += figures.clipped;
    rows += figures.rows;
    tokens += figures.tokens;
    auto const put = [&](std::string const& name, double value) {
      log_.log(metric<reduce::mean>(one->name() + "/" + name).reduced(world_of_one(), value));
    };
    if (figures.applied > 0) {
      auto const count = static_cast<double>(figures.applied);
      loss += figures.loss / count;
      squares += figures.gradient_norm / count * (figures.gradient_norm / count);
      put("loss", figures.loss / count);
      put("gradient_norm", figures.gradient_norm / count);
      put("lr", one->step().learning_rate());
      for (auto const& [name, value] : figures.losses) put("loss/" + name, value);
    }
    if (figures.skipped > 0) put("skipped", static_cast<double>(one->step().skipped()));
    if (figures.last_skipped) {
      why = figures.last_skipped;
      why->where = one->name() + (why->where.empty() ? "" : ": " + why->where);
      log_.part_skipped(models().updates(), one->name(), *figures.last_skipped);
    }
  }
  // Do not record iterations in which no part made an update.
  if (applied == 0 && !why) return false;
  models().count_boundary(applied > 0);
  watch_.updated(models().updates());
  double const norm = applied > 0 ? std::sqrt(squares) : std::numeric_limits<double>::quiet_NaN();
  step_outcome const result =
      applied > 0 ? step_outcome(result::updated{loss, norm, models().learning_rate(), clipped > 0}) : step_outcome(*why);
  event::update_end const event{.update = models().updates(),
                                .result = result,
                                .loss = applied > 0 ? loss : std::numeric_limits<double>::quiet_NaN(),
                                .gradient_norm = norm,
                                .loss_scale = models().all().front()->step().loss_scale(),
                                .tokens = tokens,
                                .rows = rows,
                                .times = of_.phases.take()};
  begin_console(rows, tokens);
  hooks_(event);
  record_update(event, false, true);
  if (applied > 0) checkpoints_.updated(loss);
  return applied > 0;
}

// The end.

KEEL_BODY outcome parts_loop::finish() {
  std::optional<outcome> ended;
  guard(
      [&] {
        auto const ends = c10::make_scope_exit([this] { watch_.end(); });
        watch_.begin(models().updates());
        {
          phase_clock::scope const agreeing(of_.phases, run_phase::update);
          ranks_.end(progress_.cursor.consumed, in_iteration_, !models().at_boundary());
        }
        models().settle();
        drop_open_update();
        ended = signal_ != 0 || was_stopped_ ? outcome(result::stopped{signal_, models().updates()})
                                             : outcome(result::finished{models().updates()});
        // An iteration that was left early is not saved, because a resume repeats its batch.
        end_run(*ended, true, !in_iteration_);
        in_iteration_ = false;
      },
      true);
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): guard() runs the function or throws
  return *ended;
}

KEEL_BODY void parts_loop::drop_open_update() {
  if (models().at_boundary()) return;
  // Other parts cannot return to the point at which the open update began.
  if (models().has_new_results()) {
    in_iteration_ = true;
    if (saves())
      log_.notice(
          "the final state of this run is not saved: one part has a partial update, but other parts have applied theirs. Call "
          "that part's flush() before finish() to complete its update");
  }
  models().drop_updates();
  progress_.cursor = boundary_cursor_;
  checkpoints_.restore_random();
}

KEEL_BODY void parts_loop::clear_stop_requests() {
  run_loop::clear_stop_requests();
  if (final_signal_listener_) static_cast<void>(final_signal_listener_->received());
  final_signal_listener_.reset();
}

// Parts.

KEEL_BODY void parts_loop::add(run_part& one, run_part const* follows) {
  models().add(one, follows);
  one.step().restore_on_skip(checkpoints_.registered());
  try {
    trained_models alone;
    alone.add(one, follows);
    checkpoints_.part_added(one.name(), alone);
  } catch (...) {
    // Rethrown: the part is not constructed.
    models().remove_unfinished(one);
    throw;
  }
  if (!begun_) return;
  progress_.record.alarms.set_warmup(models().warmup_updates());
  observer_.begin();
}

/// The parameters of the open updates of other parts.
KEEL_BODY std::vector<at::Tensor> accumulating_parameters(trained_models const& models, run_part const& except) {
  std::vector<at::Tensor> all;
  for (run_part const* const other : models.all()) {
    if (other == &except || other->step().at_boundary()) continue;
    auto const& tensors = other->parameters().tensors;
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

KEEL_BODY void parts_loop::update(run_part& one, c10::function_ref<void()> call) {
  guard([this] {
    if (!begun_) begin();
    begin_iteration();
  });
  saved_gradients const others(accumulating_parameters(models(), one));
  ranks_.begin_call();
  last_error_.clear();
  try {
    call();
  } catch (std::exception const& thrown) {
    last_error_ = first_line(thrown);
    ranks_.record_exception(one.step().ranks().is_failure_collective(), last_error_.c_str());
    throw;
  }
}

KEEL_BODY void parts_loop::observe(run_part const& one, event::incident const& event) {
  // The run's checkpoint must not contain a pending update. Settle here, so that its exception is not attributed to the incident.
  for (run_part const* const other : models().all()) {
    if (other != &one) other->step().settle();
  }
  event::incident of_run = event;
  of_run.update = models().updates();
  record_incident(of_run, one, boundary_cursor_);
}

KEEL_BODY void parts_loop::observe(run_part const& one, event::out_of_memory const& event) {
  event::out_of_memory of_run = event;
  of_run.update = models().updates();
  record_out_of_memory(of_run, one.name());
}

KEEL_BODY void parts_loop::observe(run_part const& one, event::rung_released const& event) {
  event::rung_released of_run = event;
  of_run.update = models().updates();
  log_.rung_released(of_run, one.name());
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
