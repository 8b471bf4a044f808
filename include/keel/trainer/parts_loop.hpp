// The loop of a run of several models, independent of the recipe's type. In each iteration the program may update any parts, in any order
// and any number of times. The end of an iteration is a boundary of the run if no part has an open update. keel::run is its typed
// interface.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <exception>
#include <keel/core/outcome.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/trainer/iteration_sync.hpp>
#include <keel/trainer/run_loop.hpp>
#include <keel/trainer/training_data.hpp>
#include <optional>
#include <string>

namespace keel::detail::inline KEEL_MODE {

class parts_loop final : public run_loop, private phase_listener {
 public:
  /// Collective. All arguments must outlive this object. Throws what the constructor of run_loop throws.
  parts_loop(config const& recipe, trained_models& parts, iteration_sync& ranks, phase_clock& phases, trainer_options& options,
             run_alarms const& alarms, environment const& machine);

  /// One loop of the program; lives exactly as long as the loop runs.
  class program_loop {
   public:
    explicit program_loop(parts_loop& of) : of_(of), signals_(of.options().stop_on_signals) {}
    program_loop(program_loop const&) = delete;
    program_loop& operator=(program_loop const&) = delete;
    ~program_loop();
    /// Begins or continues the run.
    void begin();
    /// Iterates over the batches of `epochs` epochs; 0: as many as the options require. `data` must outlive this object.
    void start(training_data& data, std::int64_t epochs);
    /// Iterates without batches until the run has completed `until` iterations.
    void start(std::int64_t until);
    bool is_over() const { return over_; }
    /// Ends this iteration and begins the next.
    void advance();

   private:
    /// Moves to the next batch, and to the next epoch at the end of this one.
    void find_batch();
    void find_iteration();
    void leave();

    parts_loop& of_;
    signal_listener signals_;
    training_data* data_ = nullptr;  ///< null: without batches
    std::int64_t count_ = 0;         ///< number of epochs or iterations after which it ends
    bool opened_ = false;
    bool over_ = false;
    int unwinding_ = std::uncaught_exceptions();  ///< exceptions in flight at construction
  };

  /// Runs `call`, a call on the run itself rather than on a part's step. If it throws, aborts the other ranks and, if `ends_run`, records
  /// the end of the run.
  void guard(c10::function_ref<void()> call, bool ends_run = false);
  outcome finish();
  /// Checks a batch before the program receives it.
  void check_batch(c10::function_ref<batch_contents()> contents) { observer_.check_batch(contents, progress_.cursor); }
  std::int64_t length() const override { return length_of(options(), 1); }
  bool is_in_iteration() const { return in_iteration_; }

  // Parts.

  /// Same as trained_models::add. Throws checkpoint_error if the part does not match the one in the checkpoint.
  void add(run_part& one, run_part const* follows);
  /// Runs a call of a part's step. Meanwhile the gradients of other parts' open updates are set aside, because this backward pass may run
  /// through their models.
  void update(run_part& one, c10::function_ref<void()> call);
  /// Announces that the next exception is thrown on all ranks, or only on this one.
  void expect_exception(bool all_ranks) { ranks_.record_exception(all_ranks, ""); }
  /// Records and saves a flush() after the last iteration.
  void end_flush() {
    guard([this] { end_iteration(false, 0); });
  }
  void record_change(run_part const& one, config const& before, config const& now) {
    log_.numbers_changed(models().updates(), before, now, one.name());
  }
  // Records with the update number of the run, not of the part.
  void observe(run_part const& one, event::incident const& event);
  void observe(run_part const& one, event::out_of_memory const& event);
  void observe(run_part const& one, event::rung_released const& event);
  /// Receives the phases of the parts' clocks.
  phase_listener& parts_phase_listener() { return *this; }

 private:
  void phase_began(run_phase which) override { of_.phases.enter(which); }
  void phase_ended(run_phase which) override {
    of_.phases.enter(run_phase::data);
    if (which == run_phase::update) watch_.record_progress();
  }
  void drop_open_update() override;
  void clear_stop_requests() override;

  void begin();
  /// Collective: returns the first rank without a batch, or -1. Also exchanges stop and save requests.
  int find_rank_without_batch(bool has_batch, signal_listener const& signals);
  /// Ends the epoch although this rank has more data, because rank `rank` has none left. Throws world_error (E25) if that rank had no batch
  /// in this epoch.
  void data_ended(int rank);
  void begin_iteration();
  /// Ends an iteration; false if the loop ends with it.
  bool end_iteration(bool consumed, int signal);
  bool should_continue(int signal);
  bool end_epoch(int signal);
  /// Records one line for all updates of the parts since the last boundary. True if one was applied.
  bool record_iteration();
  bool is_at_end() const { return length_reached() || ended_early(); }
  /// True at the end of the run, and also if an earlier loop was stopped.
  bool is_over() const { return was_stopped_ || is_at_end(); }

  iteration_sync& ranks_;
  data_cursor boundary_cursor_;  ///< position at the last boundary, before open accumulations
  bool in_iteration_ = false;
  bool was_stopped_ = false;
  int signal_ = 0;  ///< signal that stopped the run; 0: none
  /// Kept after a signal stops a multi-rank run, until that run has ended.
  std::optional<signal_listener> final_signal_listener_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/parts_loop.ipp>
#endif
