// Checkpoints of a trainer or run: scheduled and requested saves, resume, and rollback.
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
#include <keel/checkpoint/load_weights.hpp>
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
  double value;                ///< value of the metric that selects the best checkpoint
  std::int64_t update;         ///< number of updates applied when it was saved
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

class deferred_parts;

/// Why a snapshot is loaded. `roll_back` keeps a learning rate that an earlier rollback lowered; `restore_exactly` restores the exact state.
enum class snapshot_use : unsigned char { resume, roll_back, replay, restore_exactly };

/// Manages the checkpoints of a run. Members without a comment are documented at the keel::trainer members of the same name.
class checkpoint_manager {
 public:
  /// All arguments must outlive this object. `directory`: null if the options name none. Collective: every rank has a manager, and all make
  /// the same calls. Throws error (S05) for an optimizer that cannot be saved.
  checkpoint_manager(config const& recipe, trainer_options const& options, environment const& machine, run_directory* directory,
                     trained_models& models, run_progress& progress, run_log& log, hooks& listeners,
                     checkpoint_collectives ranks = {});
  ~checkpoint_manager();
  checkpoint_manager(checkpoint_manager const&) = delete;
  checkpoint_manager& operator=(checkpoint_manager const&) = delete;

  bool resume();

  void save();
  /// Requests a save at the next boundary, for an alarm or a signal. Call it on the training thread. request_save() is for the program, may
  /// be called from any thread, and its checkpoint is retained like a scheduled one.
  void request_save_from_training_thread() { is_save_requested_ = true; }
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
  /// Call after a part was added to the run; `alone` contains only that part. If the loaded checkpoint contains the part, restores its
  /// state. Throws error (S05) for an optimizer that cannot be saved, and checkpoint_error.
  void part_added(std::string const& name, trained_models& alone);
  /// Call at the start of an iteration. Captures the random state, which is restored if the program then creates a part that the checkpoint
  /// contains.
  void capture_random_before_parts();
  void migrate(keel::migrate one) { migrations_.push_back(std::move(one)); }

  std::int64_t rollbacks() const { return rollbacks_.count(); }

  std::optional<best_saved> best();
  best_saved load_best();

  /// The registered state, for a step or dry run that must restore it.
  registered_states& registered() { return registered_; }

  /// True if the next boundary saves, provided that its update is applied. With several ranks, considers only cadences in updates, epochs
  /// or tokens.
  bool is_save_due(std::int64_t updates);
  /// True if this rank has a request to save, or the clock of rank 0 makes a save due. The ranks combine these values when they agree on a
  /// save.
  bool should_request_save();

  /// Call when the run begins. Saves the initial state if the recipe rolls back, so that a checkpoint exists.
  void begin();

  /// Call at each update boundary: collects finished saves, rolls back, saves. Collective. `updated`: the last update was applied. `asked`:
  /// a signal, or any of several ranks, requests a save. `slowest_update()`: duration of the slowest update plus that of an evaluation, in
  /// seconds. Returns true if the run rolled back and its data continues at another position.
  bool handle_boundary(bool updated, bool asked, std::function<double()> const& slowest_update);

  /// Ends the run: saves unsaved progress and returns when everything is durable. Collective. Throws what a save throws.
  void end();
  /// Call when the exception `thrown` ends the run. Waits for a pending save, and saves unsaved progress if the recipe saves checkpoints on
  /// exceptions. `is_failure_collective`: all ranks end with it; if not, nothing is saved. Throws what a save throws.
  void save_after(std::exception const& thrown, bool is_failure_collective = true);

  /// `is_incomplete`: the record or the evaluation of the last update is incomplete, so save() is postponed to the boundary.
  void set_incomplete(bool is_incomplete) { is_incomplete_ = is_incomplete; }

  /// Call at an update boundary. Captures the random state from which the next update starts.
  void capture_random_state();
  /// Returns a snapshot of the run from just before the update that is being traced, with the random state and data position of that time.
  snapshot before_update(random_snapshot const& random, data_cursor const& cursor);
  /// Loads a snapshot of a run that has this recipe. `exactly`: the snapshot was taken by this trainer, so nothing may differ. Throws
  /// checkpoint_error.
  void apply_for_replay(snapshot content, std::string const& source, bool exactly);

  /// Restores the random state of the last boundary, so that a run that continues draws the same random numbers as the discarded update.
  void restore_random();

  /// Call after an evaluation of the recipe, with its value. Collective.
  void evaluated(agreed<double> const& value) {
    bool const is_best = best_.evaluated(value, models_.updates());
    // Rank 0 decides, because failed saves are recorded only there.
    is_best_pending_ |= ranks_.rank0_decides([&] { return is_best; });
  }
  /// Call after an applied update, with its loss.
  void updated(double loss) { best_.updated(loss); }

 private:
  /// The saver calls this when a save is finished, failed or dropped.
  void on_save(save_report const& report);

  /// Undoes the bookkeeping of a failed save.
  void revert_failed_save(std::int64_t update);

  /// Loads weights into the model, of parameters that shard::zero<3> shards only this rank's shards.
  void load_model_weights(std::filesystem::path const& from, weights_choice const& choice);

  /// Records the buffers that are non-finite when the run begins, so that saves accept them.
  void record_nonfinite_buffers(torch::nn::Module& model);

  /// The state of a checkpoint other than model and optimizer.
  std::vector<state_part> parts();
  std::function<void(std::int64_t, std::string const&)> on_damaged();

  config current_config() const;
  /// Throws error (S05) for an optimizer that cannot be saved, and what the writer throws for such tensors.
  void require_saveable(trained_models& models);
  accepted_changes accepted(snapshot_use use) const;
  /// Returns which slices of a checkpoint with this state this rank needs. Collective.
  slice_choice choose_slices(nlohmann::json const& state);
  /// As checkpoint_collectives::find_checkpoint.
  bool find_checkpoint(checkpoint_collectives::search const& find, snapshot& content, std::string& source);

  /// True if a buffer holds NaN or positive infinity. Negative infinity is allowed, because masks contain it.
  static bool holds_nan_or_infinity(at::Tensor const& buffer);

  bool is_due(std::int64_t updates, bool updated) const;
  /// True if a save is due by updates, epochs or tokens. These are the same on all ranks, so no communication is needed.
  bool is_due_by_count(std::int64_t updates, bool updated) const;

  bool may_drop_an_update() const { return saves_ && (recipe_.checkpoint.on_exception || recipe_.accumulate.count > 1); }
  /// Takes a snapshot of the current state. `produced_by_attempt`: the attempt that produced the parameters; nullopt means the current
  /// attempt.
  snapshot take_snapshot_now(std::optional<std::int64_t> produced_by_attempt = {});
  /// Describes the current state for the record. For a sharded optimizer, describes only this rank's shards.
  nlohmann::ordered_json describe_live_state();
  /// Saves if the cadence, a request or a new best requires it. Collective.
  void save_if_due(bool updated, bool asked);

  void record_saved_units();

  /// `scheduled`: the checkpoint policy's cadence is due. `program`: the program called save(); the checkpoint is retained like a scheduled
  /// one, in addition to it. `requested`: any other save, for example for a user or a signal, for a new best that is saved immediately, to
  /// measure the first save under young_daly, at the end of a run, or on an exception.
  enum class save_reason : unsigned char { scheduled, program, requested };
  retention retention_for(save_reason reason) const;
  /// Saves a multi-rank checkpoint. Collective. `is_synchronous`: returns when the checkpoint is durable, and throws on failure. If all
  /// ranks can write to rank 0's directory and rank 0 sees their files, each rank writes its portion; otherwise rank 0 writes everything.
  void save_collectively(save_reason reason, std::optional<std::int64_t> produced_by_attempt, bool is_synchronous);
  std::string const& run_id();
  void begin_save(save_reason reason, std::optional<std::int64_t> produced_by_attempt = {});
  void save_now(save_reason reason);
  /// Throws file_error (E01) if another run has taken the directory.
  void require_lock();
  /// Runs `save` and records it as the last save; reverts that if `save` throws.
  template <class Save>
  void record_save(Save const& save);

  /// True if a file in the run directory requests a save; removes it. Checks at most once per second, to limit system calls.
  bool take_save_request_file();

  /// Warns, once, if the grace period after a signal is too short to complete the open update, a pending save and the final save.
  void warn_if_grace_too_short(double slowest_update);

  void apply(snapshot content, std::string const& source, snapshot_use use = snapshot_use::resume);
  /// Restores the random state of the checkpoint just applied. A rank without saved state gets a random stream distinct from all others.
  void restore_loaded_random();
  /// Waits until the files of the previous save are written, and reports its result.
  void wait_for_files();
  /// Calls `take` with the newest valid checkpoint; false if there is none. Collective.
  bool visit_newest(std::function<void(snapshot, std::string const&)> const& take);

  /// Loads the checkpoint that options.resume_at names, or the newest one if the run has already restarted there and the program was merely
  /// started again. Collective. Throws error (E12) if there is none.
  bool load_checkpoint_of(std::int64_t update);

  /// Starts a new run from a checkpoint in any directory, for options.resume_from. Collective.
  bool load_from(std::filesystem::path const& directory);
  bool load_newest();
  /// Compares tensor handles, not values: a migration that changes values in place is not detected.
  static bool is_same(snapshot const& a, snapshot const& b);

  /// Returns to a checkpoint from before the fault, applies the change that the recipe specifies, and saves the result. Collective. Returns
  /// true if the data continues at another position. Throws nonfinite_error (E08) or diverged_error (E14) at the limit.
  bool roll_back(rollback_request const& request, config const& by);
  std::int64_t newest_scheduled();
  /// Returns, after a load, the last attempt whose line of the record remains valid.
  std::int64_t last_kept_attempt() const;
  /// Forgets best checkpoints that no longer exist, because a user removed them or an older version of keel kept only the newest best.
  /// Collective.
  void forget_lost_best();
  /// Seeds the generators from the recipe's seed, the number of rollbacks `count` and the rank.
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
  bool is_checkpoint_of_this_rank_ = true;  ///< the checkpoint applied last contains this rank's state
  std::optional<bool> resumed_;             ///< nullopt before the search for a checkpoint
  std::atomic<bool> save_requested_{false};
  random_snapshot random_;
  best_checkpoint best_;
  rollback_history rollbacks_;
  std::set<std::string> initially_nonfinite_buffers_;  ///< names, as of construction
  registered_states registered_;
  std::unique_ptr<deferred_parts> deferred_parts_;
  random_snapshot before_parts_;  ///< while parts are deferred: random state before the program created their models
  std::vector<keel::migrate> migrations_;
  random_snapshot boundary_random_;
  bool is_incomplete_ = false;
  std::string run_id_;                       ///< written into checkpoints; empty before the first
  std::int64_t saved_at_ = 0;                ///< number of attempts at the last save; -1 if it failed or was dropped
  bool is_save_requested_ = false;           ///< a file or a signal requested a save
  bool is_save_requested_by_clock_ = false;  ///< the clock requested a save when the ranks last agreed
  bool is_best_pending_ = false;             ///< the last evaluation was the best so far and is not saved yet
  double slowest_save_ = 0.0;                ///< seconds until the checkpoint was durable
  bool warned_ = false;
  bool is_request_check_reported_ = false;
  time_source::time_point looked_at_{};
  std::atomic<bool> may_have_lost_ranks_{false};  ///< shortens the wait for other ranks' files
  std::optional<bool> can_all_ranks_write_;       ///< to one directory; nullopt before the first multi-rank save
  bool const saves_ = recipe_.checkpoint.kind != checkpoint::kind::never;
  // Declared last, so that a pending save ends before the members that it uses are destroyed.
  std::unique_ptr<saver> saver_;         ///< on rank 0 only
  std::unique_ptr<rank_writer> writer_;  ///< on the other ranks only
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/checkpoint_manager.ipp>
#endif
