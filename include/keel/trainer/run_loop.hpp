// The loop of a trainer, whatever its recipe: data, updates, and at each boundary evaluations, rollbacks, saves and stops. keel::trainer is its
// typed front.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <keel/core/outcome.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/step/own_backward.hpp>
#include <keel/step/step_engine.hpp>
#include <keel/timeout/run_watch.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <keel/trainer/checkpointed_step.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/evaluator.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/run_observer.hpp>
#include <keel/trainer/signals.hpp>
#include <keel/trainer/training_data.hpp>
#include <keel/trainer/update_timer.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// What a recipe's alarms are, whose types the loop does not see.
struct alarms_of_run {
  std::vector<health::watched_alarm> all;
  bool write_incidents = false;
};

class run_loop final : private step_observer, private own_backward_runner {
 public:
  /// All of them outlive this. Throws error (E12) for options that do not fit, file_error (E01, E02) for the directory; on all ranks of the step's
  /// world.
  run_loop(step_engine& step, trainer_options& options, alarms_of_run const& alarms, environment const& machine);
  run_loop(run_loop const&) = delete;
  run_loop& operator=(run_loop const&) = delete;
  ~run_loop() override;

  outcome fit(training_data& data);
  void request_stop() { stop_requested_.store(true, std::memory_order_relaxed); }

  /// A micro-batch of how many rows and tokens; nothing for one that cannot be counted.
  struct batch_size {
    std::int64_t rows;
    std::int64_t tokens;
  };
  /// One micro-batch, in fit. `contents`: of the batch; `run` looks at it more closely and makes the step.
  step_outcome take(std::optional<batch_size> const& size, c10::function_ref<batch_contents()> contents,
                    c10::function_ref<step_outcome()> run);
  /// `run` looks at a batch closely before it trains; where it throws, the open update is dropped, on all ranks.
  void check_batch(c10::function_ref<void()> run);
  /// In a program's own loop, which `call` is.
  step_outcome take_in_own_loop(c10::function_ref<step_outcome()> call);
  own_backward open_own(std::int64_t rows, std::int64_t tokens);
  std::optional<step_outcome> flush();
  /// `signal()`: the one that asks for a stop, or 0.
  bool should_stop(c10::function_ref<int()> signal) const;
  void end_epoch();
  outcome finish(int signal);
  void change(c10::function_ref<void()> change_numbers);

  void log(reduced_value const& value) {
    if (!is_trying_) log_.log(value);
  }
  bool resume();
  void save();
  void wait_for_save();

  /// In updates; by epochs only for as long as these have as many updates as at the beginning.
  std::int64_t length() const;
  bool is_length_open() const { return step_.facts().is_length_open; }
  /// Throws recipe_error (L04) where the schedule needs a length that neither options nor batches gave.
  void require_length();
  /// A dry run or a replay, of which nothing stays, for as long as it lives.
  raised try_out() { return raised(is_trying_); }

  hooks& listeners() { return hooks_; }
  data_cursor& cursor() { return progress_.cursor; }
  data_cursor const& cursor() const { return progress_.cursor; }
  checkpoint_manager& checkpoints() { return checkpoints_; }
  checkpoint_manager const& checkpoints() const { return checkpoints_; }
  evaluator& evaluations() { return evaluator_; }
  run_observer& observer() { return observer_; }
  std::int64_t rungs_taken() const { return progress_.record.rungs; }
  memory::timeline const& memory_timeline() const { return log_.timeline(); }

 private:
  // As the step's observer.
  void observe(event::update_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_end const& event) override { hooks_(event); }
  void observe(event::gradients_ready const& event) override { hooks_(event); }
  void observe(event::update_end const& event) override;
  void observe(event::incident const& event) override;
  void observe(event::layers_measured const& event) override;
  void observe(event::out_of_memory const& event) override;
  void observe(event::rung_released const& event) override;
  bool reads_losses() const override { return hooks_.has_hook_for<event::micro_batch_end>(); }
  bool reads_gradients() const override { return hooks_.has_hook_for<event::gradients_ready>(); }
  bool watches_memory() const override { return options_.watch_memory; }
  layer_detail watches_layers() const override {
    return observer_.layers_due(directory_ || hooks_.has_hook_for<event::layers_measured>());
  }
  // A micro-batch whose backward passes the program runs.
  void begin_own() override;
  step_outcome end_own(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override;
  void abandon_own() override;

  config const& recipe() const { return step_.recipe_value(); }
  bool is_of_ranks() const { return shard::is_of_ranks(recipe().shard); }
  bool saves() const { return recipe().checkpoint.kind != checkpoint::kind::never; }
  bool length_reached() const { return length() > 0 && step_.updates() >= length(); }
  bool ended_early() const { return progress_.evaluations.is_over(); }

  void begin_run();
  outcome run_epochs(training_data& data, signal_listener const& listener);
  /// Nothing if the epoch went to its end and the run goes on.
  std::optional<outcome> run_epoch(training_data& data, signal_listener const& listener);
  /// Trains on one batch; what ends the walk.
  std::optional<outcome> train_one(training_data& data, signal_listener const& listener);
  void before_micro_batch();
  void begin_console(std::int64_t rows, std::int64_t tokens);
  step_outcome after_micro_batch(step_outcome taken);
  /// An update that is decided on a device is read one later, unless something that follows must know it now.
  step_outcome known_now(step_outcome const& taken);
  /// The cadences, at an update boundary and whatever the outcome was.
  void after_update(step_outcome const& last);
  void after_epoch();
  void save_at_boundary(bool updated, bool asked);
  template <class Call>
  void while_saving(Call const& call);
  bool is_save_asked();
  /// As the ranks agreed.
  bool asks_to_stop() const;
  /// Seconds of an update and the evaluation that may follow it.
  double slowest_update() const { return timer_.slowest() / 1e3 + evaluator_.slowest(); }
  void evaluate_recipe();
  void record_update(event::update_end const& event);
  void move_data();
  void act_on_alarms();
  std::optional<step_outcome> close_partial_update();
  void close_epoch();
  /// What a partial accumulation has is left out on all ranks, so that they evaluate, save and go on together.
  void drop_uneven_update();
  void drop_open_update();
  outcome end_run(outcome const& ended, bool by_program = false);
  /// What asked this loop to end does not ask the next one.
  void forget_stops();
  /// What a program's own loop calls: an exception by which its run is over is in the record as fit's.
  template <bool EndsRun = false, class Call>
  std::invoke_result_t<Call const&> in_own_loop(Call const& call);
  /// In the handler of the exception by which the run ends: what can still be written down is.
  void fail(std::exception const& thrown, bool of_all = false);

  step_engine& step_;
  trainer_options& options_;
  hooks hooks_;
  console console_;
  opened_directory directory_;
  run_progress progress_;
  update_cursor cursor_{progress_.cursor};
  save_listener save_signal_;  ///< outlives a save that is under way
  run_log log_;
  checkpointed checkpointed_{step_};
  evaluator evaluator_;
  checkpoint_manager checkpoints_;
  update_timer timer_;
  run_observer observer_;
  std::atomic<bool> stop_requested_{false};
  int unwinding_ = std::uncaught_exceptions();  ///< when it was built
  std::string own_loop_threw_;                  ///< the last call of a program's own loop, first line; empty: nothing
  bool begun_ = false;
  bool ended_ = false;  ///< a fit or finish of this trainer came to its end
  bool console_begun_ = false;
  bool data_moved_ = false;  ///< by a rollback
  bool end_is_said_ = false;
  std::optional<result::gave_up> gave_up_;  ///< the last update of a program's own loop
  mutable int signal_ = 0;                  ///< that this rank has, of several
  bool is_trying_ = false;                  ///< a dry run or a replay, of which nothing stays
  bool const was_seeded_;
  std::int64_t tokens_before_ = 0;
  time_source::time_point started_;
  run_watch watch_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_loop.ipp>
#endif
