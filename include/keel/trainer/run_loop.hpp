// Base class of trainer_loop and parts_loop. At update boundaries it can begin, resume, evaluate, roll back, save, record, act on alarms and
// end. trainer_loop.hpp and parts_loop.hpp define where the boundaries are.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <keel/config/config.hpp>
#include <keel/core/outcome.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/shard/rank_requests.hpp>
#include <keel/timeout/run_watchdog.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/evaluator.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/run_observer.hpp>
#include <keel/trainer/signals.hpp>
#include <keel/trainer/trained_models.hpp>
#include <keel/trainer/update_timer.hpp>
#include <string>
#include <type_traits>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The alarms of a recipe, as values: the loop is independent of the recipe's type.
struct run_alarms {
  std::vector<health::watched_alarm> all;
  bool write_incidents = false;
};

/// The objects that a loop uses. They must outlive it.
struct loop_context {
  config const& recipe;
  trained_models& models;
  rank_requests& ranks;
  bool ranks_agree;  ///< the ranks agree on stops and saves with each update
  phase_clock& phases;
  trainer_options& options;
  environment const& machine;
};

class run_loop {
 public:
  run_loop(run_loop const&) = delete;
  run_loop& operator=(run_loop const&) = delete;

  void request_stop() { stop_requested_.store(true, std::memory_order_relaxed); }
  void log(reduced_value const& value) {
    if (!in_dry_run_) log_.log(value);
  }
  bool resume();
  void save();
  void wait_for_save();
  /// Marks a dry run or a replay, which records nothing, for the lifetime of the returned value.
  scoped_flag enter_dry_run() { return scoped_flag(in_dry_run_); }

  /// Waits for a pending update. Throws error (E12), whose message names `call`, if a model has an open update.
  void require_no_open_update(char const* call);
  /// Length of the run in updates; 0: unlimited.
  virtual std::int64_t length() const = 0;

  config const& recipe() const { return of_.recipe; }
  trained_models& models() { return of_.models; }
  trained_models const& models() const { return of_.models; }
  trainer_options const& options() const { return of_.options; }
  hooks& listeners() { return hooks_; }
  data_cursor& cursor() { return progress_.cursor; }
  data_cursor const& cursor() const { return progress_.cursor; }
  checkpoint_manager& checkpoints() { return checkpoints_; }
  checkpoint_manager const& checkpoints() const { return checkpoints_; }
  evaluator& evaluations() { return evaluator_; }
  run_observer& observer() { return observer_; }
  std::int64_t rungs_taken() const { return progress_.record.rungs; }
  memory::timeline const& memory_timeline() const { return log_.timeline(); }

 protected:
  /// Collective. Throws on all ranks: error (E12) for invalid options, file_error (E01, E02) for the directory.
  run_loop(loop_context const& of, run_alarms const& alarms);
  ~run_loop();

  /// Called before the search for a checkpoint.
  virtual void before_resume() {}
  /// Discards the open update and returns to the state of the last boundary.
  virtual void drop_open_update() = 0;

  bool saves() const { return recipe().checkpoint.kind != checkpoint::kind::never; }
  bool length_reached() const { return length() > 0 && models().updates() >= length(); }
  bool ended_early() const { return progress_.evaluations.is_over(); }

  /// Resumes and begins the run; false if it has already begun.
  bool begin_run();
  void begin_console(std::int64_t rows, std::int64_t tokens);
  /// Called before the first micro-batch of an update.
  void begin_update();
  /// The stop and save requests of this rank, for the next agreement.
  pending_requests requests(int signal);
  /// Evaluates and saves if that is due. Called at an update boundary; `updated`: the last update was applied.
  void after_update(bool updated);
  void close_epoch();
  /// `late`: the next update is already open. `warns`: report a skipped update on the console.
  void record_update(event::update_end const& event, bool late, bool warns);
  /// `part`: name of the model in a run of several.
  void record_out_of_memory(event::out_of_memory const& event, std::string const& part = {});
  void record_incident(event::incident const& event, run_part const& part, data_cursor const& began_at);
  /// `saves_end`: the run ends at a boundary, so its end can be saved.
  outcome end_run(outcome const& ended, bool by_program, bool saves_end = true);
  /// Clears the requests that ended this loop, so that they do not end the next one.
  virtual void clear_stop_requests();
  /// Saves and records the end of the run as far as possible. Call from the handler of the exception that ends it. `is_failure_collective`:
  /// all ranks throw this exception, so the other ranks are not aborted.
  void fail(std::exception const& thrown, bool is_failure_collective = false);

  loop_context of_;
  hooks hooks_;
  console console_;
  opened_directory directory_;
  run_progress progress_;
  save_listener save_signal_;  ///< declared before checkpoints_, to outlive a pending save
  run_log log_;
  evaluator evaluator_;
  checkpoint_manager checkpoints_;
  update_timer timer_;
  run_observer observer_;
  std::atomic<bool> stop_requested_{false};
  std::string last_error_;  ///< first line of the error of the last call in a program's own loop; empty: none
  bool begun_ = false;
  bool ended_ = false;            ///< the loop has ended once
  bool is_data_rewound_ = false;  ///< a rollback rewound the data
  run_watchdog watch_;

 private:
  template <class Call>
  void while_saving(Call const& call);
  void after_epoch();
  void save_at_boundary(bool updated, bool asked);
  void evaluate_recipe();
  void act_on_alarms();

  int unwinding_ = std::uncaught_exceptions();  ///< exceptions in flight at construction
  bool console_begun_ = false;
  bool in_dry_run_ = false;  ///< a dry run or a replay, which records nothing
  bool const was_seeded_;
  std::int64_t tokens_before_ = 0;
  time_source::time_point started_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/run_loop.ipp>
#endif
