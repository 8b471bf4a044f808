// keel::trainer, the loop that a careful engineer would have written by hand, from a recipe:
//
//     keel::trainer<recipe> run{model, optimizer, {.run_directory = "run", .updates = 1000}};   then run.fit(batches, loss_of)
// fit resumes by itself, updates, records, saves, stops on signals, and returns how it ended; step takes one micro-batch in your own
// loop, which asks should_stop and ends with finish.
// Of a recipe with keel::shard::replicate one on each rank, with its world behind the optimizer:
//     keel::trainer<recipe> run{model, optimizer, keel::join(), {.run_directory = "run", .updates = 1000}};
// The ranks save, stop, evaluate and end together (run_of_ranks.hpp), so all of them make the same calls; rank 0 has the checkpoints and
// their events, the record and the console.
// This file has the loop, made of the step (step.hpp), checkpoint_manager.hpp, evaluator.hpp, run_log.hpp, progress.hpp and dry_run.hpp.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <keel/attention/attention.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/data/no_batches.hpp>
#include <keel/determinism/seed.hpp>
#include <keel/evaluation/evaluate.hpp>
#include <keel/health/alarm_watch.hpp>
#include <keel/metrics/console.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/phase_times.hpp>
#include <keel/step/step.hpp>
#include <keel/trainer/checkpoint_manager.hpp>
#include <keel/trainer/dry_run.hpp>
#include <keel/trainer/environment.hpp>
#include <keel/trainer/epoch.hpp>
#include <keel/trainer/evaluator.hpp>
#include <keel/trainer/hooks.hpp>
#include <keel/trainer/open_directory.hpp>
#include <keel/trainer/options.hpp>
#include <keel/trainer/preflight_result.hpp>
#include <keel/trainer/progress.hpp>
#include <keel/trainer/replay.hpp>
#include <keel/trainer/run_log.hpp>
#include <keel/trainer/run_observer.hpp>
#include <keel/trainer/spoiled.hpp>
#include <keel/trainer/summary.hpp>
#include <keel/trainer/update_timer.hpp>
#include <keel/trainer/watched_run.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// The trainer of a recipe. A recipe that breaks a rule is a compile error, one a rule. One thread uses a trainer; request_stop
/// and request_save may be called from any.
template <class Recipe, class Environment = environment>
class trainer : private step_observer, private detail::own_backward_runner {
  using admission = detail::admission<Recipe, detail::at_trainer>;
  static_assert(alignof(typename admission::demanded) > 0);
  using recipe = typename admission::recipe;
  static constexpr bool has_open_numbers = detail::leaves_numbers_open<recipe>;

 public:
  static constexpr config configured = detail::kinds_of(config_of<recipe>);
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
                detail::world_for<Recipe, step_type::takes_several>(world)) {}
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  trainer(Model& model, Optimizer& optimizer, World const& world, numbers const& all, trainer_options options = {})
    requires(has_open_numbers)
      : trainer(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), std::move(options),
                detail::world_for<Recipe, step_type::takes_several>(world)) {}
  /// With the numbers of another trainer of this recipe.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  trainer(Model& model, Optimizer& optimizer, detail::recipe_numbers const& all, trainer_options options,
          world_of_ranks const& world = {})
      : options_(detail::options_of_rank(std::move(options), world.rank())),
        step_(model, optimizer, all, length_at_construction(options_, all.value(), world.size() == 1), *this, world),
        console_(options_.console, options_.mode, options_.console_every),
        directory_(detail::on_all_ranks(world, [&] { return detail::open_directory(options_, saves); })) {
    step_.phases().use(options_.clock());
    if (directory_) step_.ladder().offload_to(detail::root_of(*directory_));
    step_.restore_on_skip(checkpoints_.registered());
    evaluator_.restore(checkpoints_.registered());
    decltype(observer_)::require_alarms();
  }
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
  ~trainer() {
    if (begun_ && std::uncaught_exceptions() > unwinding_) log_.left_by_exception(step_.updates(), own_loop_threw_);
  }

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
      if (is_length_open()) options_ = detail::with_epoch_length(options_, batches), require_length();
      step_.add_facts(detail::source_facts<std::remove_cvref_t<Batches>>());
      typename Environment::stop const listener(options_.stop_on_signals);
      deterministic_scope const deterministic(is_strict);
      try {
        step_.ranks().begin_run();
        begin_run();
        outcome const ended = end_run(run_epochs(batches, loss_of, listener));
        if (ended.is<result::finished>()) listener.defer();
        return ended;
      } catch (std::exception const& thrown) {
        auto const limit = detail::limit_reached(thrown, configured);
        fail(thrown, limit.has_value());
        if (!limit) throw;
        hooks_(event::run_end{*limit});
        return *limit;
      }
    }
  }

  /// The same without batches: `loss_of()` is all there is, and options.updates says how long. Throws error (E12) without a length.
  template <class LossOf>
    requires(std::invocable<std::remove_reference_t<LossOf>&> && !batch_source<std::remove_reference_t<LossOf>>)
  outcome fit(LossOf&& loss_of) {
    if (length() == 0) throw error("E12", "a run without batches needs a length. Give the trainer's options .updates.");
    return fit(no_batches(), detail::without_batch<std::remove_reference_t<LossOf>&>{loss_of});
  }

  /// Ends fit, or makes should_stop true, at the next update boundary; from a hook or from another thread.
  void request_stop() { stop_requested_.store(true, std::memory_order_relaxed); }

  /// Adds a hook: `run.on([](keel::event::update_end const& e) { .. });` run_events.hpp lists the events.
  template <class Hook>
  void on(Hook hook) {
    hooks_.add(std::move(hook));
  }

  /// Adds a metric to the record: in a hook to the current update's line, between updates to the next one's. What a loss function logs in
  /// a dry run or a replay is left out.
  void log(reduced_value const& value) {
    if (!is_trying_) log_.log(value);
  }
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
    return in_own_loop([&] {
      deterministic_scope const deterministic(is_strict);
      if (!begun_) begin_run();
      return take(batch, loss_of);
    });
  }
  /// The same without a batch: `loss_of()` is all there is.
  template <class LossOf>
    requires std::invocable<std::remove_reference_t<LossOf>&>
  step_outcome step(LossOf&& loss_of) {
    return step(no_batch{}, detail::without_batch<detail::kept_function<LossOf>>{loss_of});
  }
  /// A micro-batch whose backward passes the program runs itself (step/own_backward.hpp); its close() records and saves as step does.
  [[nodiscard]] own_backward open(std::int64_t rows = 1, std::int64_t tokens = 0) {
    detail::reject_own_backward<Recipe, configured>();
    return {*this, step_.parameters().device,  step_.environment().autocast(configured.precision.kind), step_.relief(),
            rows,  tokens == 0 ? rows : tokens};
  }
  /// As keel::step's: waits for an update that is under way on a device.
  std::optional<step_outcome> settle() { return step_.settle(); }
  /// Applies the last, partial update, as fit does at its end.
  std::optional<step_outcome> flush() {
    return in_own_loop([this] { return close_partial_update(); });
  }
  /// True if a signal, request_stop() or an evaluation of the recipe asks the loop to end, and no update is open.
  /// Of several ranks all learn of it with the next update, and stop behind the same one.
  template <class Listener>
  bool should_stop(Listener const& signals) const {
    if constexpr (step_type::replicates) {
      signal_ = signals.received();
      return step_.at_boundary() && (asks_to_stop() || ended_early());
    }
    return step_.at_boundary() && (signals.received() != 0 || stop_requested_.load(std::memory_order_relaxed) || ended_early());
  }
  /// The data has come to its end once. Evaluates and saves where the recipe does so by epochs.
  void end_epoch() {
    in_own_loop([this] { drop_uneven_update(), close_epoch(); });
  }
  /// The end of the loop, as fit's: saves what is not saved yet, ends the record, and says how it ended: stopped by `signal` or
  /// by request_stop(), given up where the last update was, or finished. A partial update is left out, and said, unless flush() came before. Throws what a save throws.
  outcome finish(int signal = 0) {
    return in_own_loop<true>([&] {
      if (step_.has_open_update()) log_.partial_update(step_.updates(), step_.open_micro_batches());
      drop_open_update();
      if constexpr (step_type::replicates) {
        // Of a signal that came since the others know nothing.
        if (step_.ranks().is_shared()) signal = step_.ranks().asked().signal;
        if (asks_to_stop()) stop_requested_ = true;
      }
      bool const stops = signal != 0 || stop_requested_.load(std::memory_order_relaxed);
      step_.settle();
      if (gave_up_) return end_run(*std::exchange(gave_up_, std::nullopt), true);
      return end_run(stops ? outcome(result::stopped{signal, step_.updates()}) : outcome(result::finished{step_.updates()}),
                     true);
    });
  }
  /// Where a loop continues after resume().
  data_cursor const& cursor() const { return progress_.cursor; }

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
    config const before = step_.present_value();
    step_.change(some);
    log_.numbers_changed(step_.updates(), before, step_.present_value());
  }

  // Checkpoints.

  /// Loads the newest good checkpoint of the run directory; false if there is none. fit and the first step do it by themselves.
  /// Throws checkpoint_error if there are checkpoints but none that this run can use, recipe_error (L04) for a schedule without a length.
  bool resume() { return require_length(), checkpoints_.resume(); }
  /// Saves a checkpoint now, beside a scheduled one of this update if there is one; returns when it is durable, or under
  /// checkpoint::asynchronous when it was copied. Throws error: E12 without a checkpoint policy, S16 inside an update; what a
  /// synchronous save throws. In a hook of checkpoint_saved it asks for the next boundary.
  void save() {
    while_saving([this] { checkpoints_.save(); });
  }
  /// Saves if all ranks agreed to.
  void save_if(agreed<bool> const& wanted) {
    if (wanted) save();
  }
  template <class Raw>  // rejected (S17): a rank that saves alone waits for the others
  void save_if(Raw const&) {
    detail::reject_call<rule::S17, Raw>();
  }
  /// Saves a checkpoint at the next update boundary; for hooks, in which no update is at its boundary yet.
  void request_save() { checkpoints_.request_save(); }
  /// Waits until the last save is durable. A save that failed is an event, as always.
  void wait_for_save() {
    while_saving([this] { checkpoints_.wait_for_save(); });
  }
  /// Registers state of the program: it is in every checkpoint from here on, and comes back with it; a tensor in it comes back
  /// as another one. An update that is skipped or begins again leaves it as it was, unless `scope` says that only checkpoints
  /// bring it back. `state` lists its fields with `void visit(auto& archive)` and outlives the trainer; a field of a type that
  /// no checkpoint holds does not compile (S27). Throws error (E12) once the run was resumed or begun; data_error (E05) for a tensor that no file holds.
  template <class State>
  void register_state(std::string name, State& state, state_scope scope = state_scope::updates) {
    checkpoints_.register_state(std::move(name), state, scope);
  }
  /// Changes checkpoints of older programs before they are compared with this one; in the order in which they were added.
  void migrate(keel::migrate one) { checkpoints_.migrate(std::move(one)); }
  /// The best checkpoint of keep_best, which is durable; nothing before there is one.
  std::optional<best_saved> best() { return checkpoints_.best(); }
  /// Puts the weights of the best checkpoint into the model, for evaluation and export, under evaluation::averaged those of the
  /// moving average, which were judged; to go on training from there, use options.resume_at. Throws error (E12) where there is
  /// none, S16 inside an update.
  best_saved load_best() { return checkpoints_.load_best(); }

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
      return evaluator_.evaluate_once(batches, loss_of);
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
    evaluator_.add(std::move(name), std::move(batches), std::move(loss_of));
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
      detail::raised const trying(is_trying_);
      return dry_run().lr_range_test(batches, loss_of, options);
    }
  }
  /// Updates on one batch at the groups' own learning rates. Throws error (E12) for less than one update, or inside an update.
  template <class Batch, class LossOf>
  overfit_result overfit_one_batch(Batch const& batch, LossOf&& loss_of, std::int64_t updates = 200) {
    detail::raised const trying(is_trying_);
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
      using looked_at = detail::preflight_subject<recipe, Environment, decltype(evaluator_)>;
      auto const known = is_length_open() ? detail::with_epoch_length(options_, batches) : options_;
      detail::raised const trying(is_trying_);
      looked_at const subject{step_, checkpoints_.registered(), evaluator_, known,
                              is_length_open() ? length_of(known, step_.present_value().accumulate.count) : length()};
      return detail::preflight_where_included(subject, batches, loss_of, options);
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
    return replay_of<Batch>(incident, loss_of, [](auto& again) { return narrowed(again); });
  }

  /// The floating-point operations of a token of this micro-batch, forward and backward; from here on the record has the
  /// utilisation of the device. Throws error (E12) inside an update, and where the batch has no tokens.
  template <class Batch, class LossOf>
  double count_operations(Batch const& batch, LossOf&& loss_of) {
    detail::raised const trying(is_trying_);
    return observer_.use_operations(dry_run().count_operations(batch, loss_of));
  }

  // What the run has come to so far.

  /// The recipe with this trainer's numbers in it.
  config const& recipe_value() const { return step_.recipe_value(); }
  /// Updates that were applied.
  std::int64_t updates() const { return step_.updates(); }
  std::int64_t skipped() const { return step_.skipped(); }
  std::int64_t rollbacks() const { return checkpoints_.rollbacks(); }
  std::int64_t rungs_taken() const { return progress_.record.rungs; }
  /// The share of the applied updates that the clip policy changed.
  double clip_fraction() const { return step_.clip_fraction(); }
  /// Of the first parameter group.
  double learning_rate() const { return step_.learning_rate(); }
  double loss_scale() const { return step_.loss_scale(); }
  /// What the recipe, and the rungs that were taken, do for memory.
  memory_settings const& relief() const { return step_.relief(); }
  /// Peaks of memory since this trainer was made; empty where nothing counts (keel/memory/statistics.hpp).
  memory::timeline const& memory_timeline() const { return log_.timeline(); }

 private:
  void observe(event::update_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_end const& event) override { hooks_(event); }
  void observe(event::gradients_ready const& event) override { hooks_(event); }
  void observe(event::update_end const& event) override {
    cursor_.close(event.late);
    watch_.updated(event.update);
    if (event.result.updated()) checkpoints_.updated(event.loss);
    checkpoints_.mark_incomplete(true);
    hooks_(event);
    // After the hooks, so that what they log stands in this update's line.
    record_update(event);
    checkpoints_.mark_incomplete(false);
  }
  void observe(event::incident const& event) override {
    observer_.incident(event, directory_.get(), checkpoints_, cursor_.began_at(), progress_.record.attempts);
    hooks_(event);
  }
  void observe(event::layers_measured const& event) override {
    log_.layers(event.record);
    hooks_(event);
  }
  void observe(event::out_of_memory const& event) override {
    log_.out_of_memory(event);
    observer_.symptom(event.slow ? "the allocator lost time" : "memory ran out");
    hooks_(event);
  }
  void observe(event::rung_released const& event) override {
    log_.rung_released(event);
    hooks_(event);
  }
  bool reads_losses() const override { return hooks_.template has_hook_for<event::micro_batch_end>(); }
  bool reads_gradients() const override { return hooks_.template has_hook_for<event::gradients_ready>(); }
  bool watches_memory() const override { return options_.watch_memory; }
  layer_detail watches_layers() const override {
    return observer_.layers_due(directory_ || hooks_.template has_hook_for<event::layers_measured>());
  }

  using step_type = detail::step_of<recipe, Environment, detail::at_trainer>;
  using phase_scope = phase_clock::scope;
  static constexpr bool is_strict = configured.determinism.kind == determinism::kind::strict;
  static constexpr bool saves = configured.checkpoint.kind != checkpoint::kind::never;

  /// In updates; by epochs only for as long as these have as many updates as at the beginning.
  std::int64_t length() const {
    bool const accumulates_otherwise = step_.present_value().accumulate.count != recipe_value().accumulate.count;
    return accumulates_otherwise ? options_.updates : length_of(options_, recipe_value().accumulate.count);
  }
  bool is_length_open() const { return step_.facts().is_length_open; }
  /// Throws recipe_error (L04) where the schedule needs a length that neither options nor batches gave.
  void require_length() {
    if (!is_length_open()) return;
    step_.set_length(length_of(options_, step_.present_value().accumulate.count));
    progress_.record.alarms.set_warmup(schedule::warmup_updates(recipe_value().schedule, step_.facts().updates));
  }
  bool length_reached() const { return length() > 0 && step_.updates() >= length(); }
  bool ended_early() const { return progress_.evaluations.is_over(); }
  detail::dry_run<recipe, Environment> dry_run() {
    return {step_, checkpoints_.registered(), is_length_open() ? run_facts::length_of_batches : length()};
  }

  template <class Batch, class LossOf, class Use>
  auto replay_of(std::filesystem::path const& incident, LossOf& loss_of, Use const& use) {
    deterministic_scope const deterministic(is_strict);
    detail::raised const trying(is_trying_);
    detail::incident_replay<Batch, LossOf> again(step_, checkpoints_, progress_.cursor, incident, loss_of);
    return again.end(use(again));
  }

  void begin_run() {
    bool const resumed = resume();
    if (begun_) return;
    // A second fit of one trainer goes on; only the first of a run that was not resumed begins it.
    if (!resumed && progress_.record.attempts == 0) {
      detail::begin_random(recipe_value().determinism, step_.parameters().device, step_.ranks().world().rank());
      log_.begin(recipe_value());
      if (!was_seeded_ && step_.ranks().world().rank() == 0) log_.not_seeded(step_.updates());
    }
    log_.write_recipe(recipe_value());
    if (configured.attention.kind == attention_kind::fused && attention_kernel(attention_kind::fused) != attention_kind::fused)
      log_.no_fused_attention(step_.updates());
    if (directory_) log_.weaker_promises(step_.updates());
    if constexpr (step_type::replicates) {
      auto const world = step_.ranks().world();
      if (world.size() > 1) log_.begins_on(step_.updates(), world);
    }
    if (options_.operations_per_token > 0.0) observer_.use_operations(options_.operations_per_token);
    started_ = options_.clock().now();
    step_.phases().restart();
    if (resumed) observer_.data_moved();
    timer_.begin_run();
    tokens_before_ = progress_.record.tokens;
    evaluator_.require_any();
    hooks_(event::run_begin{step_.updates(), resumed});
    checkpoints_.begin();
    checkpoints_.note_random();
    if (directory_) observer_.begins(resumed);
    begun_ = true;
    step_.phases().enter(run_phase::data);
    watch_.begin(step_.updates());
  }

  template <class Batches, class LossOf, class Listener>
  outcome run_epochs(Batches& batches, LossOf& loss_of, Listener const& listener) {
    data_cursor& cursor = progress_.cursor;
    data_moved_ = false;  // your own loop does not read it
    std::int64_t const epochs = options_.epochs > 0 ? options_.epochs : (length() > 0 ? 0 : 1);
    if (length_reached()) {
      require_work_left(step_.updates(), length());
      char const* const where = ended_ ? "this trainer has made its" : "the run directory holds a run that finished its";
      console_.notice(detail::formatted("nothing left to do: %s %lld updates", where, static_cast<long long>(length())));
      return result::finished{step_.updates()};
    }
    if (ended_early()) {
      console_.notice("nothing left to do: the run directory holds a run that stopped early");
      return result::finished{step_.updates()};
    }
    if (ended_ && epochs > 0 && cursor.epoch >= epochs)
      console_.notice("nothing left to do: this trainer has made its " + std::to_string(epochs) + " epochs");
    for (;;) {
      // A single-pass range has one epoch, also after a resume at its end.
      while ((epochs == 0 || cursor.epoch < epochs) && (detail::is_repeatable<Batches> || cursor.epoch == 0)) {
        if (auto ended = run_epoch(batches, loss_of, listener)) return *ended;
      }
      auto const last = close_partial_update();
      if (last && last->gave_up()) return *last->gave_up();
      // The last update may have sent the run back, and then there is data again.
      if (!std::exchange(data_moved_, false)) return result::finished{step_.updates()};
    }
  }

  /// Nothing if the epoch went to its end and the run goes on.
  template <class Batches, class LossOf, class Listener>
  std::optional<outcome> run_epoch(Batches& batches, LossOf& loss_of, Listener const& listener) {
    data_cursor& cursor = progress_.cursor;
    detail::take_order_of(cursor, batches, !step_.ranks().is_shared(), options_.accept_changed_recipe);
    auto const finished = [this]() -> outcome { return result::finished{step_.updates()}; };
    auto const begin = [&](std::int64_t position) { hooks_(event::epoch_begin{cursor.epoch, position}); };
    auto const take_one = [&](auto const& batch) -> std::optional<outcome> {
      if constexpr (step_type::replicates) signal_ = listener.received();
      // By reference: a loss function with state must not begin again with every copy.
      step_outcome const taken = take(batch, std::ref(loss_of));
      if (taken.gave_up()) return *taken.gave_up();
      if (!step_.at_boundary()) return std::nullopt;
      // Back in the data: the walk ends here and begins again at the cursor.
      if (data_moved_) return finished();
      // Where the length falls on the end of an epoch, that is evaluated and saved as the others are.
      std::int64_t const end = detail::epoch_length(batches, options_.batches_per_epoch, !step_.ranks().is_shared());
      if (length_reached() && cursor.position == end) close_epoch();
      if (data_moved_ || length_reached() || ended_early()) return finished();
      int signal = 0;
      if constexpr (step_type::replicates) {
        signal = step_.ranks().asked().signal;
        if (!asks_to_stop()) return std::nullopt;
        step_.ranks().forget_asked();
        stop_requested_ = false;
      } else {
        signal = listener.received();
        if (signal == 0 && !stop_requested_.exchange(false)) return std::nullopt;
      }
      step_.settle();
      return result::stopped{signal, step_.updates()};
    };
    std::optional<outcome> ended;
    try {
      ended = detail::walk_epoch(batches, cursor, step_.parameters().device, begin, take_one);
      if constexpr (step_type::replicates) {
        if (!ended && !data_moved_) step_.ranks().end_of_data(step_.attempted());
      }
    } catch (detail::data_ended const& by) {
      log_.data_ended(step_.updates(), by.rank);
      end_is_said_ = true;
    }
    if (std::exchange(data_moved_, false)) return std::nullopt;
    if (ended) return ended;
    drop_uneven_update();
    close_epoch();
    if (std::exchange(data_moved_, false)) return std::nullopt;
    if (length_reached() || ended_early()) return finished();
    return std::nullopt;
  }

  template <class Batch, class LossOf>
  step_outcome take(Batch const& batch, LossOf&& loss_of) {
    before_micro_batch();
    if constexpr (countable_batch<Batch>) begin_console(batch_traits<Batch>::rows(batch), batch_traits<Batch>::tokens(batch));
    return after_micro_batch(cursor_.taking([&] {
      auto const finite = look_at(batch);
      return finite ? step_(*finite, loss_of) : step_(batch, loss_of);
    }));
  }
  template <class Batch>
  std::optional<Batch> look_at(Batch const& batch) {
    step_.ranks().begin_call();
    try {
      return observer_.look_at(batch, progress_.cursor.epoch, progress_.cursor.position);
    } catch (...) {
      step_.ranks().tell();
      throw;
    }
  }

  void before_micro_batch() {
    step_.phases().stop();
    if constexpr (step_type::replicates) {
      if (save_signal_.take_request()) checkpoints_.ask();
      step_.ranks().ask({signal_, stop_requested_.load(std::memory_order_relaxed), checkpoints_.wants_save()});
    }
    if (!step_.at_boundary()) return;
    observer_.before_update(progress_.record.attempts);
    timer_.begin_update(progress_.cursor.epoch);
    cursor_.begin();
  }
  void begin_console(std::int64_t rows, std::int64_t tokens) {
    if (std::exchange(console_begun_, true)) return;
    console_.begin(length(), tokens != rows ? "tokens" : "rows");
    log_.counts_tokens(tokens != rows);
  }
  step_outcome after_micro_batch(step_outcome taken) {
    phase_clock::afterwards const waits{step_.phases(), run_phase::data};  // until the next micro-batch
    gave_up_ = taken.gave_up() ? std::optional(*taken.gave_up()) : std::nullopt;
    // An update that gives up consumed nothing: the checkpoint that follows must begin with its first batch again.
    if (gave_up_) {
      cursor_.rewind();
      return taken;
    }
    cursor_.advance();
    if (!step_.at_boundary()) return taken;
    step_outcome known = known_now(taken);
    after_update(known);
    return known;
  }
  // A micro-batch whose backward passes the program runs.
  void begin_own() override {
    if (!begun_) begin_run();
    before_micro_batch();
    cursor_.closing([this] { step_.begin_own(); });
  }
  step_outcome end_own(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override {
    begin_console(rows, tokens);
    return in_own_loop([&] { return after_micro_batch(cursor_.taking([&] { return step_.end_own(loss, rows, tokens); })); });
  }
  void abandon_own() override {
    step_.abandon_own();
    cursor_.rewind();
    checkpoints_.restore_random();
  }

  /// An update that is decided on a device is read one later, unless something that follows must know it now.
  step_outcome known_now(step_outcome const& taken) {
    if (!step_.is_pending()) return taken;
    std::int64_t const next = step_.updates() + 1;
    bool const last = length() > 0 && next >= length();
    bool const wanted = last || checkpoints_.is_save_due(next) || evaluator_.is_due(next);
    return wanted ? step_.settle().value_or(taken) : taken;
  }

  /// The cadences, at an update boundary and whatever the outcome was.
  void after_update(step_outcome const& last) {
    bool const updated = last.updated() != nullptr;
    if ((updated && evaluator_.is_due(step_.updates())) || evaluator_.is_due_by_epochs()) evaluate_recipe();
    while_saving([&] { save_at_boundary(updated, is_save_asked()); });
    checkpoints_.note_random();
  }
  void after_epoch() {
    // The outcome of an update that is under way on a device belongs to this epoch.
    bool const evaluates = evaluator_.is_due_by_epochs();
    if (evaluates || configured.checkpoint.kind == checkpoint::kind::every_epochs) step_.settle();
    if (evaluates) evaluate_recipe();
    if constexpr (saves) {
      // Also where the cadence is another one: the evaluation may be the best, which is saved at once.
      if (!evaluates && configured.checkpoint.kind != checkpoint::kind::every_epochs) return;
      while_saving([this] { save_at_boundary(false, false); });
    }
  }
  void save_at_boundary(bool updated, bool asked) {
    if (checkpoints_.at_boundary(updated, asked, [this] { return slowest_update(); })) move_data();
  }
  template <class Call>
  void while_saving(Call const& call) {
    phase_scope const saving(step_.phases(), run_phase::saving);
    call();
    watch_.moved();
  }
  bool is_save_asked() {
    if constexpr (step_type::replicates) return step_.ranks().asked().saves;
    return save_signal_.take_request();
  }
  /// As the ranks agreed.
  bool asks_to_stop() const {
    auto const& asked = step_.ranks().asked();
    return asked.signal != 0 || asked.stops;
  }
  /// Seconds of an update and the evaluation that may follow it.
  double slowest_update() const { return timer_.slowest() / 1e3 + evaluator_.slowest(); }

  void evaluate_recipe() {
    // Until it has its value, the state lacks it, and a run that went on from there would not be this one.
    checkpoints_.mark_incomplete(true);
    auto const value = agree(world_of_one(), evaluator_.evaluate_all(), reduce::mean{});
    checkpoints_.evaluated(value);
    if (schedule::judges_evaluations(recipe_value().schedule))
      step_.schedule().evaluated(value.value(), configured.evaluation.larger);
    checkpoints_.mark_incomplete(false);
    bool const ends = progress_.evaluations.evaluated(value, step_.updates());
    progress_.record.evaluated_epochs = progress_.cursor.epoch;
    act_on_alarms();
    if (ends) log_.stopped_early(step_.updates(), progress_.evaluations.why());
  }

  void record_update(event::update_end const& event) {
    bool const late = event.late && step_.has_open_update();
    auto const time = timer_.end_update(late);
    // skip<N> counts silently, apart from the record; warn<N> speaks.
    bool const warns = configured.nonfinite.kind == nonfinite::kind::warn;
    for (auto const& [name, value] : event.losses)
      log_.log(metric<reduce::mean>("loss/" + name).reduced(world_of_one(), value));
    if constexpr (step_type::replicates) {
      if (step_.ranks().is_shared()) log_.ranks_took(step_.updates(), step_.ranks().times());
    }
    log_.update(event,
                {time.epoch, step_.learning_rate(), step_.skipped(), time.milliseconds, checkpoints_.rollbacks(),
                 observer_.operations_per_token(), observer_.peak(), observer_.gpu(), late},
                warns);
    act_on_alarms();
    if (auto const words = log_.take_slowdown(); !words.empty()) observer_.symptom(words);
  }

  void move_data() { data_moved_ = true, observer_.data_moved(); }

  void act_on_alarms() {
    if constexpr (configured.health.kind != health::kind::off) {
      for (raised_alarm const& one : log_.take_alarms()) {
        hooks_(event::alarm_raised{step_.updates(), one});
        observer_.symptom(std::string("alarm ") + one.what->name);
        if (one.does == health::action::stop) request_stop();
        if (saves && one.does == health::action::checkpoint) checkpoints_.ask();
      }
    }
  }

  std::optional<step_outcome> close_partial_update() {
    auto last = step_.has_open_update() ? cursor_.closing([this] { return step_.flush(); }) : step_.flush();
    if (last && last->gave_up()) gave_up_ = *last->gave_up();
    if (last) last->gave_up() ? cursor_.rewind() : after_update(*last);
    return last;
  }
  void close_epoch() {
    if (!begun_) begin_run();
    hooks_(event::epoch_end{progress_.cursor.epoch, progress_.cursor.position});
    ++progress_.cursor.epoch;
    progress_.cursor.position = 0;
    progress_.cursor.in_epoch = false;
    observer_.end_epoch();
    if (!step_.at_boundary()) return;  // both come after the update that spans two epochs
    after_epoch();
    checkpoints_.note_random();
  }
  /// What a partial accumulation has is left out on all ranks, so that they evaluate, save and go on together.
  void drop_uneven_update() {
    if constexpr (step_type::replicates) {
      std::int64_t const epoch = progress_.cursor.epoch;
      auto const end =
          detail::find_uneven_end(step_.ranks().world(), step_.open_micro_batches(), std::exchange(end_is_said_, false));
      if (end) drop_open_update();
      progress_.cursor.epoch = epoch;  // of an update that began in the one before
      if (end && !end->is_said) log_.data_ended(step_.updates(), end->rank);
    }
  }
  void drop_open_update() {
    if (step_.has_open_update()) {
      cursor_.rewind();
      checkpoints_.restore_random();
    }
    step_.drop_update();
  }

  outcome end_run(outcome const& ended, bool by_program = false) {
    step_.settle();
    step_.verify_replicas();
    step_.phases().stop();
    step_.finish_layers();
    while_saving([this] { checkpoints_.end(); });
    observer_.end();
    std::string const words = ending(ended);
    double const seconds = std::chrono::duration<double>(options_.clock().now() - started_).count();
    console_.summary(summary_rows(words, step_.updates(), step_.skipped(), step_.clip_fraction(), progress_.record,
                                  progress_.record.tokens - tokens_before_, seconds, options_.run_directory.string(),
                                  step_.relief(), log_.timeline()));
    log_.ended(ended, step_.updates(), words, why_finished(length_reached(), progress_.evaluations, by_program));
    watch_.end();
    hooks_(event::run_end{ended});
    begun_ = false;
    ended_ = true;
    forget_stops();
    return ended;
  }
  /// What asked this loop to end does not ask the next one.
  void forget_stops() {
    stop_requested_ = false;
    signal_ = 0;
    if constexpr (step_type::replicates) step_.ranks().forget_asked();
  }

  /// What a program's own loop calls: an exception by which its run is over is in the record as fit's.
  template <bool EndsRun = false, class Call>
  auto in_own_loop(Call const& call) {
    try {
      own_loop_threw_.clear();
      return call();
    } catch (std::exception const& thrown) {
      own_loop_threw_ = first_line(thrown);
      bool const is_of_ranks = dynamic_cast<world_error const*>(&thrown) != nullptr && !step_.ranks().all_know();
      if (begun_ && (EndsRun || is_of_ranks)) fail(thrown);
      throw;
    }
  }

  /// In the handler of the exception by which the run ends: what can still be written down is.
  void fail(std::exception const& thrown, bool of_all = false) {
    if (!of_all) step_.ranks().leave(first_line(thrown).c_str());
    observer_.failing(thrown, evaluator_.is_inside());
    drop_open_update();
    begun_ = false;
    forget_stops();
    auto const try_to = [](auto const& call) {
      try {
        call();
      } catch (std::exception const&) {
        // What ends the run is the exception that is on its way; a save's end is an event in the record, and older checkpoints are whole.
      }
    };
    bool const device_may_wait = dynamic_cast<world_error const*>(&thrown) != nullptr && !step_.ranks().all_know();
    if (!device_may_wait) try_to([this] { step_.settle(); });
    try_to([&] { while_saving([&] { checkpoints_.save_after(thrown, step_.ranks().all_know()); }); });
    observer_.end();
    if constexpr (step_type::replicates) log_.leave_record_of(step_.ranks().world(), thrown.what());
    log_.failed(step_.updates(), first_line(thrown), observer_.failure());
    watch_.end();
  }

  /// Of a recipe that says how long its run may stay where it is.
  auto make_watch() {
    if constexpr (detail::is_watched(configured.timeout)) {
      evaluator_.before_each_batch([this] { watch_.moved(); });
      return detail::run_watch(recipe_value().timeout,
                               detail::watched(recipe_value().timeout, directory_.get(), options_, step_.ranks().world(),
                                               [this] { return step_.phases().shown(); }));
    } else {
      return detail::no_watch();
    }
  }

  trainer_options options_;
  hooks hooks_;
  step_type step_;
  console console_;
  detail::opened_directory directory_;
  run_progress progress_{recipe_value().evaluation, alarm_watch(detail::alarms_of<policy_of<recipe, slot::health>>(),
                                                                schedule::warmup_updates(recipe_value().schedule, length()))};
  update_cursor cursor_{progress_.cursor};
  save_listener save_signal_{saves && options_.stop_on_signals};  ///< outlives a save that is under way
  run_log log_{directory_.get(), console_, progress_.record, options_};
  detail::evaluator<recipe, step_type> evaluator_{step_, progress_, log_, hooks_, options_.clock()};
  detail::checkpointed checkpointed_{step_};
  detail::checkpoint_manager checkpoints_{recipe_value(),
                                          options_,
                                          &Environment::new_run_id,
                                          directory_.get(),
                                          checkpointed_,
                                          progress_,
                                          log_,
                                          hooks_,
                                          detail::run_of_ranks(step_.ranks().world())};
  update_timer timer_{options_.clock()};
  detail::run_observer<recipe> observer_{step_, log_, options_,
                                         !directory_ ? std::filesystem::path() : detail::root_of(*directory_) / "profiles"};
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
  bool const was_seeded_ = is_seeded(recipe_value().determinism);
  std::int64_t tokens_before_ = 0;
  time_source::time_point started_ = options_.clock().now();
  detail::watch_if<detail::is_watched(configured.timeout)> watch_ = make_watch();
};

}  // namespace keel::inline KEEL_MODE
