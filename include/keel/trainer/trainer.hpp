// keel::trainer, the loop that a careful engineer would have written by hand, from a recipe:
//
//     keel::trainer<recipe> run{model, optimizer, {.run_directory = "run", .updates = 1000}};   then run.fit(batches, loss_of)
// fit resumes by itself, updates, records, saves, stops on signals, and returns how it ended; step takes one micro-batch in your own
// loop, which asks should_stop and ends with finish.
// Of a recipe with keel::shard::replicate one on each rank, with its world behind the optimizer:
//     keel::trainer<recipe> run{model, optimizer, keel::join(), {.run_directory = "run", .updates = 1000}};
// The ranks save, stop, evaluate and end together (checkpoint_collectives.hpp), so all of them make the same calls; rank 0 has the checkpoints and
// their events, the record and the console.
// This file is the typed front: it checks the types of model, optimizer, batches and loss. The loop is trainer_loop.hpp, the update
// step/step_engine.hpp.
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
#include <keel/trainer/dry_run.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/preflight_result.hpp>
#include <keel/trainer/recipe_alarms.hpp>
#include <keel/trainer/replay.hpp>
#include <keel/trainer/trainer_loop.hpp>
#include <keel/trainer/training_data.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// The trainer of a recipe. A recipe that breaks a rule is a compile error, one a rule. One thread uses a trainer; request_stop
/// and request_save may be called from any. Of several ranks each has one, and all make the same calls in the same order.
template <class Recipe, class Environment = environment>
class trainer {
  using validated = detail::validated<Recipe, detail::trainer_entry>;
  static_assert(alignof(typename validated::diagnostics) > 0);
  using recipe = typename validated::recipe;
  static constexpr bool has_open_numbers = detail::leaves_numbers_open<recipe>;

 public:
  /// The recipe's configuration, without numbers that are given later.
  static constexpr config configured = detail::kinds_of(config_of<recipe>);
  /// For keel::owned.
  using options_type = trainer_options;

  /// The model and the optimizer must outlive the trainer. Throws recipe_error for a recipe that this model, optimizer or
  /// length breaks, error (E11, E12) for an optimizer or options that do not fit, file_error (E01, E02) for the directory.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, trainer_options options = {})
    requires(!has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>), std::move(options)) {
    detail::require_world<Recipe, step_type::replicates>();
  }
  /// For a recipe that leaves numbers open (keel::given). Throws recipe_error (E22) for numbers that are missing or not of their
  /// kind, and with the rules that they break.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, numbers const& all, trainer_options options = {})
    requires(has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), std::move(options)) {
    detail::require_world<Recipe, step_type::replicates>();
  }
  /// Of a recipe that replicates, on all ranks of `world`: rank 0's parameters, buffers and checkpoints are everyone's. Throws world_error
  /// (E24) for ranks that do not train the same, and names the first difference.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  trainer(Model& model, Optimizer& optimizer, World const& world, trainer_options options = {})
    requires(!has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>), std::move(options),
                detail::checked_world<Recipe, step_type::accepts_world>(world)) {}
  /// The same for a recipe that leaves numbers open.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  trainer(Model& model, Optimizer& optimizer, World const& world, numbers const& all, trainer_options options = {})
    requires(has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), std::move(options),
                detail::checked_world<Recipe, step_type::accepts_world>(world)) {}
  /// With the numbers of another trainer of this recipe.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, detail::recipe_numbers const& all, trainer_options options,
          world_of_ranks const& world = {})
      : options_(detail::adapt_options_to_rank(std::move(options), world.rank())),
        step_(model, optimizer, all, length_at_construction(options_, all.value(), world.size() == 1), no_observer(), world),
        loop_(step_, models_, options_, detail::collect_recipe_alarms<recipe>(), detail::environment_instance<Environment>()) {}
  /// Rejected (Z08).
  template <class Model, std::derived_from<torch::optim::Optimizer> First, std::derived_from<torch::optim::Optimizer> Second>
  trainer(Model& model, First& first, Second&, trainer_options const& = {}) : trainer(model, first) {
    detail::reject_call<rule::Z08, First, Second>();
  }
  /// Rejected (U47).
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, trainer_options const& options = {})
    requires(has_open_numbers)
      : trainer(model, optimizer, numbers{}, options) {
    detail::reject_call<rule::U47, Recipe>();
  }
  /// Rejected (U48).
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model const& model, Optimizer const& optimizer, numbers const&, trainer_options const& = {})
    requires(!has_open_numbers)
      : trainer(const_cast<Model&>(model), const_cast<Optimizer&>(optimizer)) {
    detail::reject_call_of<rule::U48, Recipe, recipe>();
  }
  trainer(trainer const&) = delete;
  /// Rejected (U51) where it is called, which for a member is where its class is moved.
  trainer(trainer&& other) noexcept
      : trainer(other.step_.model(), other.step_.optimizer(), other.step_.recipe_numbers(), trainer_options()) {
    detail::reject_call<rule::U51, Recipe>();
  }
  trainer& operator=(trainer const&) = delete;

  // The run.

  /// Trains on the batches until the options' length is reached, the data ends, a stop is requested, or a policy gives up: the ladder, or
  /// one that skips updates until its limit, after which nothing is saved and load_best() has the best weights.
  /// `batches`: an input range, a LibTorch data loader, or a function of the epoch that returns one; each element is one
  /// micro-batch. `loss_of(batch)`: its mean loss, or keel::weighted_loss. Throws what resume and step throw, what a save
  /// throws, and recipe_error for rules that the batches decide; what is not saved yet is then saved where the recipe says so.
  template <class Batches, class LossOf>
  outcome fit(Batches&& batches, LossOf&& loss_of) {
    if constexpr (!batch_source<std::remove_reference_t<Batches>>) {
      return detail::reject_call<rule::U18, Batches>(), outcome(result::finished{0});
    } else {
      detail::require_epoch_length(batches, options_.batches_per_epoch);
      if (loop_.is_length_pending()) options_ = detail::with_epoch_length(options_, batches), loop_.require_length();
      step_.add_facts(detail::source_facts<std::remove_cvref_t<Batches>>());
      // By reference: a loss function with state must not begin again with every copy.
      auto const train = [&](auto const& batch) { return take(batch, std::ref(loss_of)); };
      detail::training_data_of<std::remove_reference_t<Batches>, decltype(train)> data(batches, loop_.cursor(),
                                                                                       step_.parameters().device, train);
      return loop_.fit(data);
    }
  }

  /// The same without batches: `loss_of()` is all there is, and options.updates says how long. Throws error (E12) without a length.
  template <class LossOf>
    requires(std::invocable<std::remove_reference_t<LossOf>&> && !batch_source<std::remove_reference_t<LossOf>>)
  outcome fit(LossOf&& loss_of) {
    if (loop_.length() == 0) throw error("E12", "a run without batches needs a length. Give the trainer's options .updates.");
    return fit(no_batches(), detail::without_batch<std::remove_reference_t<LossOf>&>{loss_of});
  }

  /// Ends fit, or makes should_stop true, at the next update boundary; from a hook or from another thread.
  void request_stop() { loop_.request_stop(); }

  /// Adds a hook: `run.on([](keel::event::update_end const& e) { .. });` run_events.hpp lists the events.
  template <class Hook>
  void on(Hook hook) {
    loop_.listeners().add(std::move(hook));
  }

  /// Adds a metric to the record: in a hook to the current update's line, between updates to the next one's. What a loss function logs in
  /// a dry run or a replay is left out.
  void log(reduced_value const& value) { loop_.log(value); }
  /// Rejected (Y01): one rank's value.
  template <class... Raw>
  void log(Raw const&...) {
    detail::reject_call<rule::Y01, Raw...>();
  }

  // Your own loop.

  /// One micro-batch: updates, records and saves as fit does. The first call resumes by itself; call resume() before the loop to begin
  /// the data at cursor(). Throws what keel::step throws, and what a save throws.
  template <class Batch, class LossOf>
  step_outcome step(Batch const& batch, LossOf&& loss_of) {
    return loop_.step_in_own_loop([&] { return take(batch, loss_of); });
  }
  /// The same without a batch: `loss_of()` is all there is.
  template <class LossOf>
    requires std::invocable<std::remove_reference_t<LossOf>&>
  step_outcome step(LossOf&& loss_of) {
    return step(no_batch{}, detail::without_batch<detail::kept_function<LossOf>>{loss_of});
  }
  /// A micro-batch whose backward passes the program runs itself (step/manual_backward.hpp); its close() records and saves as step does.
  [[nodiscard]] manual_backward open(std::int64_t rows = 1, std::int64_t tokens = 0) {
    detail::reject_manual_backward<Recipe, configured>();
    return loop_.open_manual_backward(rows, tokens);
  }
  /// As keel::step's: waits for an update that is under way on a device.
  std::optional<step_outcome> settle() { return step_.settle(); }
  /// Applies the last, partial update, as fit does at its end.
  std::optional<step_outcome> flush() { return loop_.flush(); }
  /// True if a signal, request_stop() or an evaluation of the recipe asks the loop to end, and no update is open.
  /// Of several ranks all learn of it with the next update, and stop behind the same one.
  template <class Listener>
  bool should_stop(Listener const& signals) const {
    return loop_.should_stop([&]() -> int { return signals.received(); });
  }
  /// The data has come to its end once. Evaluates and saves where the recipe does so by epochs.
  void end_epoch() { loop_.end_epoch(); }
  /// The end of the loop, as fit's: saves what is not saved yet, ends the record, and says how it ended: stopped by `signal` or
  /// by request_stop(), given up where the last update was, or finished. A partial update is left out, and said, unless flush() came before. Throws what a save throws.
  outcome finish(int signal = 0) { return loop_.finish(signal); }
  /// Where a loop continues after resume().
  data_cursor const& cursor() const { return loop_.cursor(); }

  /// Trains more of the model from here on, between updates: a layer that was frozen until this epoch, as a group of the optimizer with
  /// this rate; 0: that of the first group. What is trained already stays as it is, so a hook may say it in every epoch. A checkpoint
  /// knows it: a resume and a rollback have what was trained then. Throws as step::unfreeze.
  template <class Module>
  void unfreeze(Module& module, double rate = 0.0) {
    step_.unfreeze(as_module(module).parameters(), rate > 0.0 ? rate : step_.schedule().highest(0));
  }

  /// Changes .accumulate or .clip from the next update on, as accumulation that grows, and says so in the record; a checkpoint knows it.
  /// Throws as step::change.
  void change(numbers const& some)
    requires(has_open_numbers)
  {
    loop_.change([&] { step_.change(some); });
  }

  // Checkpoints.

  /// Loads the newest good checkpoint of the run directory; false if there is none. fit and the first step do it by themselves.
  /// Throws checkpoint_error if there are checkpoints but none that this run can use, recipe_error (L04) for a schedule without a length.
  bool resume() { return loop_.resume(); }
  /// Saves a checkpoint now, beside a scheduled one of this update if there is one; returns when it is durable, or under
  /// checkpoint::asynchronous when it was copied. Throws error: E12 without a checkpoint policy, S16 inside an update; what a
  /// synchronous save throws. In a hook of checkpoint_saved it asks for the next boundary.
  void save() { loop_.save(); }
  /// Saves if all ranks agreed to.
  void save_if(agreed<bool> const& wanted) {
    if (wanted) save();
  }
  template <class Raw>  // rejected (S17): a rank that saves alone waits for the others
  void save_if(Raw const&) {
    detail::reject_call<rule::S17, Raw>();
  }
  /// Saves a checkpoint at the next update boundary; for hooks, in which no update is at its boundary yet.
  void request_save() { loop_.checkpoints().request_save(); }
  /// Waits until the last save is durable. A save that failed is an event, as always.
  void wait_for_save() { loop_.wait_for_save(); }
  /// Registers state of the program: it is in every checkpoint from here on, and comes back with it; a tensor in it comes back
  /// as another one. An update that is skipped or begins again leaves it as it was, unless `scope` says that only checkpoints
  /// bring it back. `state` lists its fields with `void visit(auto& archive)` and outlives the trainer; a field of a type that
  /// no checkpoint holds does not compile (S27). Throws error (E12) once the run was resumed or begun; data_error (E05) for a tensor that no file holds.
  template <class State>
  void register_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    loop_.checkpoints().register_state(std::move(name), state, scope);
  }
  /// Changes checkpoints of older programs before they are compared with this one; in the order in which they were added.
  void migrate(keel::migrate one) { loop_.checkpoints().migrate(std::move(one)); }
  /// The best checkpoint of keep_best, which is durable; nothing before there is one.
  std::optional<best_saved> best() { return loop_.checkpoints().best(); }
  /// Puts the weights of the best checkpoint into the model, for evaluation and export, under evaluation::averaged those of the
  /// moving average, which were judged; to go on training from there, use options.resume_at. Throws error (E12) where there is
  /// none, S16 inside an update.
  best_saved load_best() { return loop_.checkpoints().load_best(); }

  // Evaluation.

  /// Weighted mean of `loss_of` over the batches, without a graph; random state, training modes and the registered state of updates are
  /// left as they were. Where `loss_of` returns batch_metrics, it is an evaluation_result with their means.
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
  /// What the recipe's evaluations look at; both are kept by copy, or by std::ref. The batches are read again each time.
  /// Rejected for a range that can be read once (U32), or that says it is endless where nothing bounds the evaluation (E28).
  /// A second call adds a second evaluation if it has a name.
  template <class Batches, class LossOf>
    requires(!std::convertible_to<Batches, std::string>)
  void evaluate_on(Batches batches, LossOf loss_of) {
    evaluate_on(std::string(), std::move(batches), std::move(loss_of));
  }
  /// `name` goes before its values, as in "validation/loss"; a second one of the same name replaces the first.
  template <class Batches, class LossOf>
  void evaluate_on(std::string name, Batches batches, LossOf loss_of) {
    loop_.evaluations().template add<recipe>(std::move(name), std::move(batches), std::move(loss_of));
  }
  /// Puts the moving average into the model for as long as the returned value lives: `auto scope = run.averaged();`, then
  /// evaluate, or `keel::save_weights("ema.safetensors", run.averaged())`. Training meanwhile, or a second one, throws error (M04).
  [[nodiscard]] auto averaged() {
    if constexpr (step_type::averages) {
      return step_.average().swap_in(step_.model());
    } else {
      return detail::reject_call_of<rule::U31, Recipe, recipe>(), nullptr;
    }
  }

  // Dry runs, which leave the run as it was.

  /// Updates at rates from low to high and says how the loss took them. `batches` as for fit, and read as often as it takes;
  /// a single-pass range is rejected (U32). Throws error (E12) for options without sense, or inside an update.
  template <class Batches, class LossOf>
  lr_range_result lr_range_test(Batches&& batches, LossOf&& loss_of, lr_range_options const& options = {}) {
    if constexpr (!detail::is_repeatable<std::remove_reference_t<Batches>>) {
      detail::reject_call<rule::U32, Batches>();
      return {};
    } else {
      auto const trying = loop_.try_out();
      return dry_run().lr_range_test(batches, loss_of, options);
    }
  }
  /// Updates on one batch at the groups' own learning rates. Throws error (E12) for less than one update, or inside an update.
  template <class Batch, class LossOf>
  overfit_result overfit_one_batch(Batch const& batch, LossOf&& loss_of, std::int64_t updates = 200) {
    auto const trying = loop_.try_out();
    return dry_run().overfit_one_batch(batch, loss_of, updates);
  }
  /// A minute before a week: looks for what would waste the run, and leaves it as it was. The checks stand in
  /// keel/diagnose/preflight.hpp, which keel/keel.hpp includes. What a check throws is what it says. Throws error (E12) inside an update,
  /// data_error (E06) where there are no batches.
  template <class Batches, class LossOf>
  preflight_result preflight(Batches&& batches, LossOf&& loss_of, preflight_options const& options = {}) {
    if constexpr (!detail::is_repeatable<std::remove_reference_t<Batches>>) {
      return detail::reject_call<rule::U32, Batches>(), preflight_result();
    } else {
      using looked_at = detail::preflight_subject<recipe, Environment>;
      auto const known = loop_.is_length_pending() ? detail::with_epoch_length(options_, batches) : options_;
      auto const trying = loop_.try_out();
      looked_at const subject{
          step_, loop_.checkpoints().registered(), loop_.evaluations(), known,
          loop_.is_length_pending() ? length_of(known, step_.present_value().accumulate.count) : loop_.length()};
      return detail::run_preflight_if_included(subject, batches, loss_of, options);
    }
  }

  /// The update of an incident of keel::incident::keep again, from the file that `incident` names: `loss_of` as for fit, of one type of
  /// batch, or `run.replay<batch_type>(..)`. Throws checkpoint_error where the file is of another run or damaged.
  template <class Batch = void, class LossOf>
  replay_result replay(std::filesystem::path const& incident, LossOf&& loss_of, replay_options const& options = {}) {
    return replay_of<Batch>(incident, loss_of, [&](auto& again) { return again.run(options); });
  }
  /// The same again and again, each time with one thing changed: what makes it finite is at fault, or near to it.
  template <class Batch = void, class LossOf>
  narrow_result narrow(std::filesystem::path const& incident, LossOf&& loss_of) {
    return replay_of<Batch>(incident, loss_of, [](auto& again) { return run_experiments(again); });
  }

  /// The floating-point operations of a token of this micro-batch, forward and backward; from here on the record has the
  /// utilisation of the device. Throws error (E12) inside an update, and where the batch has no tokens.
  template <class Batch, class LossOf>
  double count_operations(Batch const& batch, LossOf&& loss_of) {
    auto const trying = loop_.try_out();
    return loop_.observer().use_operations(dry_run().count_operations(batch, loss_of));
  }

  // What the run has come to so far.

  /// The recipe with this trainer's numbers in it.
  config const& recipe_value() const { return step_.recipe_value(); }
  /// Updates that were applied.
  std::int64_t updates() const { return step_.updates(); }
  /// Updates that were skipped.
  std::int64_t skipped() const { return step_.skipped(); }
  /// Rollbacks of the run so far.
  std::int64_t rollbacks() const { return loop_.checkpoints().rollbacks(); }
  /// Rungs of the ladder that were taken so far.
  std::int64_t rungs_taken() const { return loop_.rungs_taken(); }
  /// The share of the applied updates that the clip policy changed.
  double clip_fraction() const { return step_.clip_fraction(); }
  /// Of the first parameter group.
  double learning_rate() const { return step_.learning_rate(); }
  /// Factor on the next update's loss.
  double loss_scale() const { return step_.loss_scale(); }
  /// What the recipe, and the rungs that were taken, do for memory.
  memory_settings const& relief() const { return step_.relief(); }
  /// Peaks of memory since this trainer was made; empty where nothing counts (keel/memory/statistics.hpp).
  memory::timeline const& memory_timeline() const { return loop_.memory_timeline(); }

 private:
  using step_type = detail::typed_step<recipe, Environment, detail::trainer_entry>;

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
  /// Nothing where all rows are finite, or none.
  template <class Batch>
  std::optional<Batch> drop_nonfinite_rows(Batch const& batch) {
    std::optional<Batch> finite;
    loop_.check_batch([&] {
      finite = detail::drop_nonfinite_rows(
          batch, [this](std::int64_t count, std::int64_t rows) { loop_.observer().dropped(count, rows); });
    });
    return finite;
  }

  detail::dry_run<recipe, Environment> dry_run() {
    return {step_, loop_.checkpoints().registered(), loop_.is_length_pending() ? run_facts::length_of_batches : loop_.length()};
  }

  template <class Batch, class LossOf, class Use>
  auto replay_of(std::filesystem::path const& incident, LossOf& loss_of, Use const& use) {
    deterministic_scope const deterministic(configured.determinism.kind == determinism::kind::strict);
    auto const trying = loop_.try_out();
    detail::incident_replay<Batch, LossOf> again(step_, loop_.checkpoints(), loop_.cursor(), incident, loss_of);
    return again.end(use(again));
  }

  trainer_options options_;
  step_type step_;
  detail::trained_models models_{step_};
  detail::trainer_loop loop_;
};

}  // namespace keel::inline KEEL_MODE
