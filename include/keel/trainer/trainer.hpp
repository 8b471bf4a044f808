// keel::trainer, a training loop generated from a recipe:
//
//     keel::trainer<recipe> run{model, optimizer, {.run_directory = "run", .updates = 1000}};   then run.fit(batches, loss_of)
// fit() resumes automatically, trains, records, saves, stops on signals, and returns how the run ended. In your own loop, step()
// trains on one micro-batch; call should_stop() in the loop and finish() after it.
// With keel::shard::replicate each rank constructs a trainer, and the world is the third argument:
//     keel::trainer<recipe> run{model, optimizer, keel::join(), {.run_directory = "run", .updates = 1000}};
// The ranks save, stop, evaluate and end together (checkpoint_collectives.hpp), so all ranks must make the same calls. Rank 0 owns the
// checkpoints and their events, the record and the console.
// This header is the typed interface: it checks the types of model, optimizer, batches and loss. trainer_loop.hpp implements the loop,
// step/step_engine.hpp the update.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/collective/agreed.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/data/no_batches.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/step/checked_world.hpp>
#include <keel/step/typed_step.hpp>
#include <keel/trainer/change_batch.hpp>
#include <keel/trainer/dry_run_calls.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/recipe_alarms.hpp>
#include <keel/trainer/trainer_loop.hpp>
#include <keel/trainer/training_data.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// The step of a trainer.
template <class Recipe, class Environment>
using trainer_step = typed_step<typename validated<Recipe, trainer_entry>::recipe, Environment, trainer_entry>;

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Trains a model as a recipe specifies. A recipe that breaks rules does not compile; each broken rule is one error. Not thread-safe,
/// except request_stop and request_save. Collective: each rank has one, and all make the same calls in the same order.
template <class Recipe, class Environment = environment>
class trainer : public dry_run_calls<trainer<Recipe, Environment>, detail::trainer_step<Recipe, Environment>> {
  using validated = detail::validated<Recipe, detail::trainer_entry>;
  static_assert(alignof(typename validated::diagnostics) > 0);
  using recipe = typename validated::recipe;
  static constexpr bool has_open_numbers = detail::leaves_numbers_open<recipe>;

 public:
  /// The recipe's configuration, without the numbers that are supplied at run time.
  static constexpr config configured = detail::kinds_of(config_of<recipe>);
  /// The options type, used by keel::owned.
  using options_type = trainer_options;

  /// The model and the optimizer must outlive the trainer. Throws recipe_error if the recipe does not fit this model, optimizer or run
  /// length; error (E11, E12) for an unsuitable optimizer or invalid options; file_error (E01, E02) for the run directory.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, trainer_options options = {})
    requires(!has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>), std::move(options)) {
    detail::require_world<Recipe, step_type::is_distributed>();
  }
  /// For a recipe that leaves numbers open (keel::given). Throws recipe_error: E22 if a number is missing or of the wrong kind; otherwise
  /// with the ids of the rules that the numbers break.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, numbers const& all, trainer_options options = {})
    requires(has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), std::move(options)) {
    detail::require_world<Recipe, step_type::is_distributed>();
  }
  /// For a multi-rank recipe. Collective over `world`: all ranks take the parameters, buffers and checkpoints of rank 0. Throws
  /// world_error (E24), which names the first difference, if the ranks have different configurations.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  trainer(Model& model, Optimizer& optimizer, World const& world, trainer_options options = {})
    requires(!has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>), std::move(options),
                detail::checked_world<Recipe, step_type::accepts_world>(world)) {}
  /// Same as the constructor above, for a recipe that leaves numbers open.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  trainer(Model& model, Optimizer& optimizer, World const& world, numbers const& all, trainer_options options = {})
    requires(has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), std::move(options),
                detail::checked_world<Recipe, step_type::accepts_world>(world)) {}
  /// Constructs a trainer with the given numbers of this recipe. Used by the constructors above.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, detail::recipe_numbers const& all, trainer_options options,
          world_of_ranks const& world = {})
      : options_(detail::adapt_options_to_rank(std::move(options), world.rank())),
        step_(model, optimizer, all, length_at_construction(options_, all.value(), world.size() == 1), no_observer(), world),
        loop_(step_, models_, options_, detail::collect_recipe_alarms<recipe>(), detail::environment_instance<Environment>()) {}
  /// Rejected (Z08): a trainer has exactly one optimizer.
  template <class Model, std::derived_from<torch::optim::Optimizer> First, std::derived_from<torch::optim::Optimizer> Second>
  trainer(Model& model, First& first, Second&, trainer_options const& = {}) : trainer(model, first) {
    detail::reject_call<rule::Z08, First, Second>();
  }
  /// Rejected (U47): the numbers are missing.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, trainer_options const& options = {})
    requires(has_open_numbers)
      : trainer(model, optimizer, numbers{}, options) {
    detail::reject_call<rule::U47, Recipe>();
  }
  /// Rejected (U48): the recipe leaves no numbers open.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model const& model, Optimizer const& optimizer, numbers const&, trainer_options const& = {})
    requires(!has_open_numbers)
      : trainer(const_cast<Model&>(model), const_cast<Optimizer&>(optimizer)) {
    detail::reject_call_of<rule::U48, Recipe, recipe>();
  }
  trainer(trainer const&) = delete;
  /// Rejected (U51): a trainer cannot be moved. If it is a data member, the error appears where the enclosing class is moved.
  trainer(trainer&& other) noexcept
      : trainer(other.step_.model(), other.step_.optimizer(), other.step_.recipe_numbers(), trainer_options()) {
    detail::reject_call<rule::U51, Recipe>();
  }
  trainer& operator=(trainer const&) = delete;

  // The run.

  /// Trains on the batches until the length in the options is reached, the data ends, a stop is requested, or a policy gives up. A policy
  /// gives up when the ladder has no rung left, or when skipped updates reach their limit. In the latter case nothing is saved;
  /// load_best() loads the best weights.
  /// `batches`: an input range, a LibTorch data loader, or a function of the epoch that returns one; each element is one micro-batch.
  /// `loss_of(batch)` returns the mean loss of the batch, or keel::weighted_loss. Throws what resume, step and saves throw, and
  /// recipe_error for rules that depend on the batches. On an exception, unsaved progress is saved if the recipe saves checkpoints on
  /// exceptions.
  template <class Batches, class LossOf>
  outcome fit(Batches&& batches, LossOf&& loss_of) {
    if constexpr (!batch_source<std::remove_reference_t<Batches>>) {
      return detail::reject_call<rule::U18, Batches>(), outcome(result::finished{0});
    } else {
      detail::require_epoch_length(batches, options_.batches_per_epoch);
      if (loop_.is_length_pending()) options_ = detail::with_epoch_length(options_, batches), loop_.require_length();
      step_.add_facts(detail::source_facts<std::remove_cvref_t<Batches>>());
      // By reference: copies of a stateful loss function would each start from the initial state.
      auto const train = [&](auto const& batch) { return take(batch, std::ref(loss_of)); };
      detail::training_data_of<std::remove_reference_t<Batches>, decltype(train)> data(batches, loop_.cursor(),
                                                                                       step_.parameters().device, train);
      return loop_.fit(data);
    }
  }

  /// Trains without batches, by calling `loss_of()`, for options.updates updates. Throws error (E12) without a length.
  template <class LossOf>
    requires(std::invocable<std::remove_reference_t<LossOf>&> && !batch_source<std::remove_reference_t<LossOf>>)
  outcome fit(LossOf&& loss_of) {
    if (loop_.length() == 0) throw error("E12", "a run without batches needs a length. Set .updates in the trainer's options.");
    return fit(no_batches(), detail::without_batch<std::remove_reference_t<LossOf>&>{loss_of});
  }

  /// Makes fit return, or should_stop return true, at the next update boundary. May be called from a hook or from another thread.
  void request_stop() { loop_.request_stop(); }

  /// Adds a hook: `run.on([](keel::event::update_end const& e) { .. });` run_events.hpp lists the events.
  template <class Hook>
  void on(Hook hook) {
    loop_.listeners().add(std::move(hook));
  }

  /// Adds a metric to the record: inside a hook, to the line of the current update; between updates, to the line of the next one. Ignores
  /// values that a loss function logs in a dry run or a replay.
  void log(reduced_value const& value) { loop_.log(value); }
  /// Rejected (Y01): a raw value is that of one rank only.
  template <class... Raw>
  void log(Raw const&...) {
    detail::reject_call<rule::Y01, Raw...>();
  }

  // Your own loop.

  /// Trains on one micro-batch; updates, records and saves as fit does. The first call resumes automatically; to start the data at
  /// cursor(), call resume() before the loop. Throws what keel::step and a save throw.
  template <class Batch, class LossOf>
  step_outcome step(Batch const& batch, LossOf&& loss_of) {
    return loop_.step_in_own_loop([&] { return take(batch, loss_of); });
  }
  /// Same as the overload above, but without a batch: calls `loss_of()`.
  template <class LossOf>
    requires std::invocable<std::remove_reference_t<LossOf>&>
  step_outcome step(LossOf&& loss_of) {
    return step(no_batch{}, detail::without_batch<detail::kept_function<LossOf>>{loss_of});
  }
  /// Opens a micro-batch for which the program runs the backward passes (step/manual_backward.hpp). Its close() records and saves as step
  /// does.
  [[nodiscard]] manual_backward open(std::int64_t rows = 1, std::int64_t tokens = 0) {
    detail::reject_manual_backward<Recipe, configured>();
    return loop_.open_manual_backward(rows, tokens);
  }
  /// Waits for an update that is pending on a device, like keel::step::settle.
  std::optional<step_outcome> settle() { return step_.settle(); }
  /// Applies the last, partial accumulation, as fit does at its end.
  std::optional<step_outcome> flush() { return loop_.flush(); }
  /// True if a signal, request_stop() or an evaluation of the recipe requests the end of the loop, and no update is open. With several
  /// ranks the request takes effect with the next update, and all ranks stop after the same update.
  template <class Listener>
  bool should_stop(Listener const& signals) const {
    return loop_.should_stop([&]() -> int { return signals.received(); });
  }
  /// Ends an epoch: call it after each pass over the data. Evaluates and saves if the recipe has cadences in epochs. Collective.
  void end_epoch() { loop_.end_epoch(); }
  /// Ends the run as fit does: saves unsaved progress, closes the record and returns how the run ended. The outcome is stopped if `signal`
  /// is nonzero or request_stop() was called, gave_up if a policy gave up in the last update, and finished otherwise. Discards a partial
  /// accumulation and logs that, unless flush() applied it. Collective. Throws what a save throws.
  outcome finish(int signal = 0) { return loop_.finish(signal); }
  /// The current position in the data. After resume(), the position at which a loop continues.
  data_cursor const& cursor() const { return loop_.cursor(); }

  /// Unfreezes the parameters of `module` between two updates, as a new parameter group of the optimizer. `rate`: its learning rate; 0:
  /// that of the first group. Parameters that are already trained are unchanged, so a hook may call this in every epoch. Checkpoints record
  /// it, so a resume or rollback restores which parameters were trained. Throws what step::unfreeze throws.
  template <class Module>
  void unfreeze(Module& module, double rate = 0.0) {
    step_.unfreeze(as_module(module).parameters(), rate > 0.0 ? rate : step_.schedule().highest(0));
  }

  /// Changes .accumulate or .clip from the next update on, for example to grow the accumulation. The record and checkpoints contain the
  /// change. Throws what step::change throws.
  void change(numbers const& changes)
    requires(has_open_numbers)
  {
    loop_.change([&] { step_.change(changes); });
  }

  // Checkpoints.

  /// Loads the newest valid checkpoint of the run directory; false if there is none. fit and the first step call it automatically.
  /// Collective.
  /// Throws checkpoint_error if this run can use none of the checkpoints, recipe_error (L04) if the schedule needs a length.
  bool resume() { return loop_.resume(); }
  /// Saves a checkpoint now, in addition to a scheduled one of this update. Returns when it is durable, or, under checkpoint::asynchronous,
  /// when the state was copied. Collective. Throws error (E12 without a checkpoint policy, S16 inside an update) and what a synchronous
  /// save throws. In a checkpoint_saved hook it requests a save at the next boundary.
  void save() { loop_.save(); }
  /// Saves if `wanted`, a value that all ranks agreed on.
  void save_if(agreed<bool> const& wanted) {
    if (wanted) save();
  }
  template <class Raw>  // rejected (S17): a rank that saves alone would wait forever for the others
  void save_if(Raw const&) {
    detail::reject_call<rule::S17, Raw>();
  }
  /// Requests a checkpoint at the next update boundary; for hooks, which run before the boundary. May be called from any thread.
  void request_save() { loop_.checkpoints().request_save(); }
  /// Waits until the last save is durable. A failed save emits event::checkpoint_failed and does not throw.
  void wait_for_save() { loop_.wait_for_save(); }
  /// Registers state of the program. Every later checkpoint stores it, and loading restores it; a restored tensor is a new tensor object. A
  /// skipped or restarted update restores it too, unless `scope` is state_scope::checkpoints. `state` lists its fields with
  /// `void visit(auto& archive)` and must outlive the trainer. A field of an unsupported type does not compile (S27). Throws error (E12)
  /// after the run was resumed or started; data_error (E05) for a tensor that cannot be saved.
  template <class State>
  void register_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    loop_.checkpoints().register_state(std::move(name), state, scope);
  }
  /// Adds a migration, which changes checkpoints of older programs before they are compared with this one. Migrations run in the order in
  /// which they were added.
  void migrate(keel::migrate one) { loop_.checkpoints().migrate(std::move(one)); }
  /// The best checkpoint under checkpoint::keep_best, once it is durable; nullopt if there is none. Collective.
  std::optional<best_saved> best() { return loop_.checkpoints().best(); }
  /// Loads the weights of the best checkpoint into the model, for evaluation and export. Under evaluation::averaged these are the moving
  /// average, if the evaluations used it. To continue training from there, use options.resume_at. Collective. Throws error: E12 if
  /// there is no best checkpoint, S16 inside an update.
  best_saved load_best() { return loop_.checkpoints().load_best(); }
  /// All-gathers the full parameters for the lifetime of the returned object, so that they can be read, saved and changed outside their
  /// units. Make the same changes on all ranks. Needed under shard::zero<3> only. Collective.
  [[nodiscard]] gathered_parameters gather_parameters() { return step_.gather_parameters(); }
  /// Permanently restores the full (unsharded) parameters. Call before destroying a trainer with shard::zero<3> if the model is used
  /// afterwards; no further updates are possible. Collective.
  void unshard_parameters() { step_.unshard_parameters(); }

  // Evaluation.

  /// Returns the weighted mean of `loss_of` over the batches, computed without a graph. If `loss_of` returns batch_metrics, returns an
  /// evaluation_result with their means. Restores the random state, the training modes and registered state of state_scope::updates.
  template <class Batches, class LossOf>
  auto evaluate(Batches&& batches, LossOf&& loss_of) {
    if constexpr (!batch_source<std::remove_reference_t<Batches>>) {
      return detail::reject_call<rule::U32, Batches>(), 0.0;
    } else if constexpr (!countable_batch<detail::batch_of<std::remove_reference_t<Batches>>>) {
      return detail::reject_call<rule::U14, detail::batch_of<std::remove_reference_t<Batches>>>(), 0.0;
    } else {
      return loop_.evaluations().evaluate_once(batches, loss_of);
    }
  }
  /// Sets the data and loss of the recipe's evaluations. Copies both; pass std::ref to keep a reference. Each evaluation reads the batches
  /// again. Rejected for a single-pass range (U32), and for an endless one if the evaluation has no limit (E28). To add further
  /// evaluations, give them names.
  template <class Batches, class LossOf>
    requires(!std::convertible_to<Batches, std::string>)
  void evaluate_on(Batches batches, LossOf loss_of) {
    evaluate_on(std::string(), std::move(batches), std::move(loss_of));
  }
  /// Adds an evaluation with a name, which prefixes its values, as in "validation/loss". Replaces an earlier one of the same name.
  template <class Batches, class LossOf>
  void evaluate_on(std::string name, Batches batches, LossOf loss_of) {
    loop_.evaluations().template add<recipe>(std::move(name), std::move(batches), std::move(loss_of));
  }
  /// Swaps the moving average into the model for the lifetime of the returned value: `auto scope = run.averaged();`, then evaluate, or
  /// `keel::save_weights("ema.safetensors", run.averaged())`. Training or swapping again before the value is destroyed throws error (M04).
  [[nodiscard]] auto averaged() {
    if constexpr (step_type::has_average) {
      return step_.average().swap_in(step_.model());
    } else {
      return detail::reject_call_of<rule::U31, Recipe, recipe>(), nullptr;
    }
  }

  /// Counts the floating-point operations per token of this micro-batch, forward and backward. The record then contains the utilization of
  /// the device. Throws error (E12) inside an update, or if the batch has no tokens.
  template <class Batch, class LossOf>
  double count_operations(Batch const& batch, LossOf&& loss_of) {
    auto const trying = loop_.enter_dry_run();
    return loop_.observer().use_operations(detail::dry_run<step_type>(dry_run_subject()).count_operations(batch, loss_of));
  }

  // Progress.

  /// The recipe's configuration with this trainer's numbers.
  config const& recipe_value() const { return step_.recipe_value(); }
  /// Applied updates.
  std::int64_t updates() const { return step_.updates(); }
  /// Skipped updates.
  std::int64_t skipped() const { return step_.skipped(); }
  /// Rollbacks of the run so far.
  std::int64_t rollbacks() const { return loop_.checkpoints().rollbacks(); }
  /// Rungs of the ladder taken so far.
  std::int64_t rungs_taken() const { return loop_.rungs_taken(); }
  /// Fraction of the applied updates that were clipped.
  double clip_fraction() const { return step_.clip_fraction(); }
  /// Learning rate of the first parameter group.
  double learning_rate() const { return step_.learning_rate(); }
  /// Loss scale of the next update.
  double loss_scale() const { return step_.loss_scale(); }
  /// Memory-saving measures in effect, from the recipe and the rungs taken so far.
  memory_settings const& relief() const { return step_.relief(); }
  /// Memory peaks since this trainer was constructed; empty if memory usage is not tracked (keel/memory/statistics.hpp).
  memory::timeline const& memory_timeline() const { return loop_.memory_timeline(); }

 private:
  using step_type = detail::trainer_step<Recipe, Environment>;

  template <class Batch, class LossOf>
  step_outcome take(Batch const& batch, LossOf&& loss_of) {
    std::optional<detail::trainer_loop::batch_size> size;
    if constexpr (countable_batch<Batch>) size = {batch_traits<Batch>::rows(batch), batch_traits<Batch>::tokens(batch)};
    return loop_.take(
        size, [&] { return contents_of(batch); },
        [&] {
          if constexpr (configured.batch_guard.kind == batch_guard::kind::drop) {
            if (auto const finite = drop_nonfinite_rows(batch)) return step_(*finite, loss_of);
          }
          return step_(batch, loss_of);
        });
  }
  /// Returns nullopt if the batch should be used unchanged: all rows are finite, or none is.
  template <class Batch>
  std::optional<Batch> drop_nonfinite_rows(Batch const& batch) {
    std::optional<Batch> finite;
    loop_.check_batch([&] {
      finite = detail::drop_nonfinite_rows(
          batch, [this](std::int64_t count, std::int64_t rows) { loop_.observer().dropped(count, rows); });
    });
    return finite;
  }

  friend dry_run_calls<trainer, step_type>;
  detail::dry_run_subject dry_run_subject() { return {step_, loop_, no_observer()}; }

  trainer_options options_;
  step_type step_;
  detail::trained_models models_{step_};
  detail::trainer_loop loop_;
};

}  // namespace keel::inline KEEL_MODE
