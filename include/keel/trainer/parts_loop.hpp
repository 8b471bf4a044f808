// The loop of a run of several models, whatever its recipe: iterations of the program, in which parts are updated in any order and number.
// A boundary of the run is the end of an iteration at which no part has an update open. keel::run is its typed front.
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
  /// All of them outlive this. Throws as run_loop; on all ranks.
  parts_loop(config const& recipe, trained_models& parts, iteration_sync& ranks, phase_clock& phases, trainer_options& options,
             run_alarms const& alarms, environment const& machine);

  /// A loop of the program, for as long as it lives.
  class walk {
   public:
    explicit walk(parts_loop& of) : of_(of), signals_(of.options().stop_on_signals) {}
    walk(walk const&) = delete;
    walk& operator=(walk const&) = delete;
    ~walk();
    /// The run begins or goes on.
    void begin();
    /// Batches of `epochs` epochs; 0: as many as the options say. `data` outlives this.
    void start(training_data& data, std::int64_t epochs);
    /// Iterations without batches, until the run has made so many.
    void start(std::int64_t until);
    bool is_over() const { return over_; }
    /// The next iteration.
    void advance();

   private:
    /// The next batch, in the next epoch where this one is at its end.
    void find_batch();
    void find_iteration();
    void leave();

    parts_loop& of_;
    signal_listener signals_;
    training_data* data_ = nullptr;  ///< null: without batches
    std::int64_t count_ = 0;         ///< epochs or iterations at which it ends
    bool opened_ = false;
    bool over_ = false;
    int unwinding_ = std::uncaught_exceptions();  ///< when it was built
  };

  /// `call` belongs to no update of a part: the other ranks learn it where it throws. `ends_run`: and the run is over.
  void guard(c10::function_ref<void()> call, bool ends_run = false);
  outcome finish();
  /// Looks at a batch before the program has it.
  void look_at(c10::function_ref<batch_contents()> contents) { observer_.look_at(contents, progress_.cursor); }
  std::int64_t length() const override { return length_of(options(), 1); }
  bool is_in_iteration() const { return in_iteration_; }

  // Parts.

  /// As trained_models::add. Throws checkpoint_error for what does not fit to the checkpoint's.
  void add(run_part& one, run_part const* follows);
  /// A call of a part's step. Gradients of another part's open update are set aside meanwhile: this one's backward pass runs through its
  /// model too.
  void update(run_part& one, c10::function_ref<void()> call);
  /// The exception that follows is thrown on all ranks, or on this one.
  void expect_exception(bool all_ranks) { ranks_.threw(all_ranks, ""); }
  /// After the last iteration.
  void end_flush() {
    guard([this] { end_iteration(false, 0); });
  }
  void record_change(run_part const& one, config const& before, config const& now) {
    log_.numbers_changed(models().updates(), before, now, one.name());
  }
  // The record counts the updates of the run.
  void observe(run_part const& one, event::incident const& event);
  void observe(run_part const& one, event::out_of_memory const& event);
  void observe(run_part const& one, event::rung_released const& event);
  /// Of the clocks of the parts.
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
  /// Of several ranks they agree here: the first that has no batch, or -1.
  int find_rank_without_batch(bool has_batch, signal_listener const& signals);
  /// An epoch ends on this rank, which has more of it, because it ends on another one.
  void data_ended(int rank);
  void begin_iteration();
  /// Between two iterations. False where the loop is to end.
  bool end_iteration(bool consumed, int signal);
  bool should_continue(int signal);
  bool end_epoch(int signal);
  /// One line for all that the parts did since the last boundary. True where something was applied.
  bool record_iteration();
  bool is_at_end() const { return length_reached() || ended_early(); }
  /// Also where a loop before this one was asked to stop.
  bool is_over() const { return was_stopped_ || is_at_end(); }

  iteration_sync& ranks_;
  data_cursor boundary_cursor_;  ///< before what parts have accumulated
  bool in_iteration_ = false;
  bool was_stopped_ = false;
  int signal_ = 0;                                        ///< that stopped it
  std::optional<signal_listener> final_signal_listener_;  ///< of several ranks that a signal stops
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/parts_loop.ipp>
#endif
