// What a trainer does with checkpoints: when it saves, what it resumes from, and how it rolls back.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/archive.hpp>
#include <keel/checkpoint/best_checkpoint.hpp>
#include <keel/checkpoint/migrate.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/config/config.hpp>
#include <keel/core/parameters.hpp>
#include <keel/ema/moving_average.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/rule/nonfinite.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/trainer/checkpoint_collectives.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/registered_state.hpp>
#include <keel/trainer/rollback_history.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/trained_models.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

struct accepted_changes;
struct retention;
struct save_report;
struct snapshot;
struct state_part;
class rank_writer;
class run_directory;
class saver;

/// The best checkpoint of a run.
struct best_saved {
  std::filesystem::path path;  ///< its directory, for load_weights and options.resume_from
  double value;                ///< of what it is judged by
  std::int64_t update;         ///< that it holds
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

class deferred_parts;

/// Why a snapshot is loaded. `roll_back` keeps a learning rate that an earlier rollback lowered; `put_back` restores the exact state.
enum class snapshot_use : unsigned char { resume, roll_back, replay, put_back };

/// A trainer's part; the trainer's own members of the same names document what users call.
class checkpoint_manager {
 public:
  /// All of them outlive this; `directory` is null where the options name none. Of several ranks every one
  /// has a manager, and calls the same.
  checkpoint_manager(config const& recipe, trainer_options const& options, environment const& machine, run_directory* directory,
                     trained_models& models, run_progress& progress, run_log& log, hooks& listeners,
                     checkpoint_collectives ranks = {});
  ~checkpoint_manager();
  checkpoint_manager(checkpoint_manager const&) = delete;
  checkpoint_manager& operator=(checkpoint_manager const&) = delete;

  bool resume();

  void save();
  /// For an alarm: as if a person asked.
  void ask() { is_save_requested_ = true; }
  void request_save() { save_requested_.store(true, std::memory_order_relaxed); }
  void wait_for_save();

  template <class State>
  void register_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    if constexpr (!saveable<State>) {
      reject_call<rule::S05, State>();
    } else {
      if (resumed_)
        throw error("E12", "cannot register state " + name +
                               ": the run has already started. Call register_state before resume(), fit() and step().");
      registered_.add(std::move(name), state, scope);
    }
  }
  /// A run got one more part, which `alone` shows by itself: what a checkpoint holds for it is in it then. Throws error (S05) for an
  /// optimizer that cannot be saved, and checkpoint_error.
  void part_added(std::string const& name, trained_models& alone);
  /// An iteration begins, in which parts may be made that a checkpoint knows.
  void capture_random_before_parts();
  void migrate(keel::migrate one) { migrations_.push_back(std::move(one)); }

  std::int64_t rollbacks() const { return rollbacks_.count(); }

  std::optional<best_saved> best();
  best_saved load_best();

  /// The registered state, for a step or dry run that must leave it as it was.
  registered_states& registered() { return registered_; }

  /// The next boundary saves if its update is applied.
  bool is_save_due(std::int64_t updates);
  /// Of several ranks: this one was asked for a save, or its clock says that it is time for one.
  bool should_request_save();

  /// The run begins: a recipe that rolls back needs something to roll back to.
  void begin();

  /// At an update boundary: collects finished saves, rolls back, saves. `updated`: the last update was applied;
  /// `asked`: by a signal, or by any of several ranks; `slowest_update()`: seconds, of an evaluation too. True if the run rolled back and its data continues elsewhere.
  bool at_boundary(bool updated, bool asked, std::function<double()> const& slowest_update);

  /// The run ends: everything is durable when this returns, or it throws.
  void end();
  /// The run ends with an exception: waits for a save that is under way, and saves what is not saved yet where the recipe says
  /// so; `is_failure_collective`: all ranks end by it. What it throws is thrown.
  void save_after(std::exception const& thrown, bool is_failure_collective = true);

  /// The record of the last update, or its evaluation, is still to come.
  void mark_incomplete(bool now) { is_incomplete_ = now; }

  /// At an update boundary: from here on numbers are drawn for what comes next.
  void capture_random_state();
  /// What the run was before an update that is being looked into, which began with this random state and at this place in the data.
  snapshot before_update(random_snapshot const& random, data_cursor const& cursor);
  /// Puts a snapshot of a run with this recipe into this one; `exactly`: it is of this run and trainer, with nothing to accept.
  /// Throws checkpoint_error.
  void apply_for_replay(snapshot content, std::string const& source, bool exactly);

  /// Puts the random state of the last boundary back, so that a run that continues draws what the dropped update drew.
  void restore_random();

  /// An evaluation of the recipe gave this value.
  void evaluated(agreed<double> const& value) {
    bool const is_best = best_.evaluated(value, models_.updates());
    // A save that failed is known to rank 0 alone.
    is_best_pending_ |= ranks_.rank0_decides([&] { return is_best; });
  }
  /// An update was applied with this loss.
  void updated(double loss) { best_.updated(loss); }

 private:
  /// Called by the saver when a save is finished, failed or dropped.
  void on_save(save_report const& report);

  /// Undoes the bookkeeping of the save of this update, which failed.
  void revert_failed_save(std::int64_t update);

  /// Notes what was not finite from the start.
  void record_nonfinite_buffers(torch::nn::Module& model);

  /// What a checkpoint holds beside model and optimizer.
  std::vector<state_part> parts();
  std::function<void(std::int64_t, std::string const&)> on_damaged();

  config present_config() const;
  /// Throws error (S05) for an optimizer, and what the writer throws for tensors, that cannot be saved.
  void require_saveable(trained_models& models);
  accepted_changes accepted(snapshot_use use) const;
  /// The optimizers that cut a checkpoint's tensors while it is passed on.
  std::vector<trained_optimizer> sharded_optimizers();

  /// NaN or infinity in a buffer. Minus infinity is what masks are made of.
  static bool holds_nan_or_infinity(at::Tensor const& buffer);

  bool is_due(std::int64_t updates, bool updated) const;
  /// By updates, epochs or tokens, so that all ranks find the same.
  bool is_due_by_count(std::int64_t updates, bool updated) const;

  bool may_drop_an_update() const { return saves_ && (recipe_.checkpoint.on_exception || recipe_.accumulate.count > 1); }
  /// `age`: of the parameters, if they are not of now.
  snapshot live(std::optional<std::int64_t> age = {});
  /// For the record; of an optimizer in shares those of this rank.
  nlohmann::ordered_json describe_live_state();
  /// A `scheduled` save is due by the cadence; one that the `program` asks for is kept like it and replaces none; `requested`
  /// are those that a person or a signal asks for, a new best at once, the first of a process under young_daly, which only
  /// measures, and those at the end of a run or on an exception.
  void save_if_due(bool updated, bool asked);

  void record_saved_units();

  enum class save_reason : unsigned char { scheduled, program, requested };
  retention retention_for(save_reason reason) const;
  /// `at_once`: returns when it is durable, and throws whatever goes wrong. Each rank writes its portion where all can write into rank 0's
  /// directory, and rank 0 sees what they write.
  void save_collectively(save_reason reason, std::optional<std::int64_t> age, bool at_once);
  std::string const& run_id();
  void begin_save(save_reason reason, std::optional<std::int64_t> age = {});
  void save_now(save_reason reason);
  /// Throws file_error (E01) where another run has taken the directory.
  void require_lock();
  /// The last save is of these updates, unless it comes to nothing.
  template <class Save>
  void remember(Save const& save);

  /// A look at the directory costs a system call, and a second is soon enough.
  bool take_save_request_file();

  /// Once, where a signal would leave too little time for the open update, a save under way and the last one.
  void warn_of_grace(double slowest_update);

  void apply(snapshot content, std::string const& source, snapshot_use use = snapshot_use::resume);
  /// The random numbers of what was applied; those of a rank that the checkpoint does not know are of no other rank.
  void restore_loaded_random();
  /// Waits for files of the save before; what became of it is reported.
  void wait_for_files();
  /// Passes the newest whole checkpoint on; false without one.
  bool visit_newest(std::function<void(snapshot, std::string const&)> const& take);

  /// From the checkpoint of that update, as a person asked, unless the run did so before and is only started again. Throws
  /// error (E12) where there is none.
  bool load_checkpoint_of(std::int64_t update);

  /// From a checkpoint of any directory, as the beginning of this one's run.
  bool load_from(std::filesystem::path const& directory);
  bool load_newest();
  /// Compares tensor handles, not values: a migration that changes values in place is not detected.
  static bool is_same(snapshot const& a, snapshot const& b);

  /// Returns to a checkpoint that is older than the fault can be, changes what the recipe says, and makes both durable. True if
  /// the data continues elsewhere than where it stands.
  bool roll_back(rollback_request const& request, config const& by);
  std::int64_t newest_scheduled();
  /// Of a checkpoint that was just loaded: the last attempt whose line of the record stays.
  std::int64_t last_kept_attempt() const;
  /// What the loaded record calls the best may be gone: removed by hand, or by a version of keel that kept only the newest
  /// best.
  void forget_lost_best();
  /// A seed of the recipe's seed and of how often the run rolled back.
  void reseed(at::DeviceType device, std::int64_t count);

  config const& recipe_;
  trainer_options const& options_;
  environment const& machine_;
  run_directory* directory_;
  trained_models& models_;
  run_progress& progress_;
  run_log& log_;
  hooks& hooks_;

  checkpoint_collectives ranks_;
  bool is_checkpoint_of_this_rank_ = true;  ///< what was applied last was saved by a rank of this number
  std::optional<bool> resumed_;             ///< nothing: before the search for a checkpoint
  std::atomic<bool> save_requested_{false};
  random_snapshot random_;
  best_checkpoint best_;
  rollback_history rollbacks_;
  std::set<std::string> initially_nonfinite_buffers_;  ///< that were so when the run was built
  registered_states registered_;
  std::unique_ptr<deferred_parts> deferred_parts_;
  random_snapshot before_parts_;  ///< while some wait: before the program made their models
  std::vector<keel::migrate> migrations_;
  random_snapshot boundary_random_;
  bool is_incomplete_ = false;
  std::string run_id_;                       ///< of the checkpoints; empty until the first
  std::int64_t saved_at_ = 0;                ///< attempts when the last save began that did not fail
  bool is_save_requested_ = false;           ///< by a file or a signal
  bool is_save_requested_by_clock_ = false;  ///< the last time that several ranks agreed
  bool is_best_pending_ = false;             ///< the last evaluation was the best so far
  double slowest_save_ = 0.0;                ///< seconds until it was durable
  bool warned_ = false;
  bool cannot_look_ = false;
  time_source::time_point looked_at_{};
  std::atomic<bool> may_have_lost_ranks_{false};  ///< whoever waits for their files gives up soon
  std::optional<bool> can_all_ranks_write_;       ///< into one directory; nothing before the first save of several ranks
  bool const saves_ = recipe_.checkpoint.kind != checkpoint::kind::never;
  // Last: a save that is under way ends before what it works with.
  std::unique_ptr<saver> saver_;         ///< of rank 0
  std::unique_ptr<rank_writer> writer_;  ///< of another one
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/checkpoint_manager.ipp>
#endif
