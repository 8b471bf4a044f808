// keel::step, the guarded update for programs that own their loop:
//
//     keel::step<recipe> step{model, optimizer};
//     for (auto const& batch : batches) keel::step_outcome outcome = step(batch, loss_of);
//
// Of a recipe with keel::shard::replicate one on each rank: keel::step<recipe> step{model, optimizer, keel::join()};
//
// With accumulate<N> every Nth call updates. The order of the phases is fixed by the types of gradients.hpp; what each
// phase does is the recipe's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/collective/words_of_rank.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/parameters.hpp>
#include <keel/ema/moving_average.hpp>
#include <keel/gradients/interference.hpp>
#include <keel/loss_scale/device_scale.hpp>
#include <keel/loss_scale/grad_scaler.hpp>
#include <keel/memory/phase_watch.hpp>
#include <keel/oom/cut_batch.hpp>
#include <keel/oom/memory_ladder.hpp>
#include <keel/recipe/admitted.hpp>
#include <keel/schedule/lr_schedule.hpp>
#include <keel/shard/replication.hpp>
#include <keel/step/closure_update.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/late_update.hpp>
#include <keel/step/observer.hpp>
#include <keel/step/own_backward.hpp>
#include <keel/step/own_policies.hpp>
#include <keel/step/program_state.hpp>
#include <keel/step/recipe_context.hpp>
#include <keel/step/recipe_numbers.hpp>
#include <keel/step/replicated_update.hpp>
#include <keel/step/shown_gradients.hpp>
#include <keel/step/step_environment.hpp>
#include <keel/step/training_mode.hpp>
#include <keel/step/update_decision.hpp>
#include <keel/step/update_events.hpp>
#include <keel/step/update_guards.hpp>
#include <keel/step/update_pass.hpp>
#include <keel/step/update_replay.hpp>
#include <keel/step/update_trace.hpp>
#include <keel/step/world_for.hpp>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The guarded update of a recipe. A recipe that breaks a rule is a compile error, one a rule. `Observer` is called with the
/// events of update_events.hpp: a trainer's, or nothing.
template <class Recipe, class Environment = step_environment, class Observer = detail::no_observer>
class step {
  using door = detail::door_of<Observer>;
  using admission = detail::admission<Recipe, door>;
  static_assert(alignof(typename admission::demanded) > 0);
  using recipe = typename admission::recipe;
  using judged = typename detail::judged_at<recipe, door>::type;
  using context_type = recipe_context<recipe, typename Environment::autocast>;

 public:
  /// What the recipe is made of; its numbers are recipe_value()'s.
  static constexpr config configured = detail::kinds_of(config_of<recipe>);
  static constexpr bool averages = configured.ema.decay > 0.0;
  static constexpr bool replicates = shard::is_of_ranks(configured.shard);
  static constexpr bool takes_several = replicates || std::same_as<recipe, detail::inert>;
  using world_type = std::conditional_t<replicates, world_of_ranks, typename Environment::world>;
  /// What follows model and optimizer: the length of the run.
  using options_type = std::int64_t;

  /// `updates`: the length of the run for schedules that need one; 0: not known. Model and optimizer must outlive the step.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, std::int64_t updates = 0, Observer observe = {})
    requires(!detail::recipe_numbers<recipe>::are_open)
      : step(model, optimizer, detail::recipe_numbers<recipe>(), updates, observe) {
    require_world();
  }
  /// For a recipe that leaves numbers open. Throws recipe_error: E22 that names the numbers which are missing or not of their kind,
  /// and with the rules that they break.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, numbers const& all, std::int64_t updates = 0, Observer observe = {})
    requires(detail::recipe_numbers<recipe>::are_open)
      : step(model, optimizer, detail::recipe_numbers<recipe>(all), updates, observe) {
    require_world();
  }
  /// With the numbers of another step of this recipe.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, detail::recipe_numbers<recipe> const& all, std::int64_t updates = 0,
       Observer observe = {}, world_type const& world = {})
      : numbers_(all),
        model_(as_module(model)),
        optimizer_(optimizer),
        engine_(dynamic_cast<update_engine*>(std::addressof(optimizer))),
        parameters_(detail::on_all_ranks(world, [&] { return collect_parameters(model_, optimizer); })),
        context_(detail::on_all_ranks(world,
                                      [&] {
                                        return context_type(std::addressof(model), optimizer, parameters_,
                                                            detail::judged_value(observe, recipe_value()), updates,
                                                            detail::ranks_of<replicates, Environment>(world));
                                      })),
        scaler_(recipe_value().loss_scale),
        schedule_(optimizer, recipe_value().schedule, updates, lr_schedule::factor_of<schedule_policy>()),
        observe_(observe),
        world_(world),
        replication_(world) {
    // Only where a custom rule rejected the recipe without a compile error.
    if constexpr (std::same_as<recipe, detail::inert>) throw broken_rule<recipe_error, rule::D25>();
    require_types_fit<judged, module_of<Model>, Optimizer>();
    detail::require_own_policies_fit<recipe>();
    if constexpr (replicates)
      replication_.begin(recipe_value(), parameters_, model_, optimizer_, updates, has_closure(),
                         Environment::decides_on_device(parameters_.device));
  }
  /// Of a recipe that replicates, on all ranks of `world`: rank 0's parameters and buffers are everyone's from here on. Throws world_error
  /// (E24) for ranks that do not train the same, and names the first difference.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  step(Model& model, Optimizer& optimizer, World const& world, std::int64_t updates = 0, Observer observe = {})
    requires(!detail::recipe_numbers<recipe>::are_open)
      : step(model, optimizer, detail::recipe_numbers<recipe>(), updates, observe,
             detail::world_for<world_type, Recipe, takes_several>(world)) {}
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  step(Model& model, Optimizer& optimizer, World const& world, numbers const& all, std::int64_t updates = 0,
       Observer observe = {})
    requires(detail::recipe_numbers<recipe>::are_open)
      : step(model, optimizer, detail::recipe_numbers<recipe>(all), updates, observe,
             detail::world_for<world_type, Recipe, takes_several>(world)) {}
  /// Rejected (Z08): which of the two would be guarded?
  template <class Model, std::derived_from<torch::optim::Optimizer> First, std::derived_from<torch::optim::Optimizer> Second>
  step(Model& model, First& first, Second&, std::int64_t = 0, Observer = {}) : step(model, first) {
    detail::reject_call<rule::Z08, First, Second>();
  }
  /// Rejected (U47): the numbers are missing.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, std::int64_t updates = 0, Observer observe = {})
    requires(detail::recipe_numbers<recipe>::are_open)
      : step(model, optimizer, numbers{}, updates, observe) {
    detail::reject_call<rule::U47, Recipe>();
  }
  /// Rejected (U48): numbers that the recipe has no place for.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, numbers const&, std::int64_t updates = 0, Observer observe = {})
    requires(!detail::recipe_numbers<recipe>::are_open)
      : step(model, optimizer, updates, observe) {
    detail::reject_call_of<rule::U48, Recipe, recipe>();
  }
  step(step const&) = delete;  // the update may be run again by functions that know this object
  /// Rejected (U51) where it is called, which for a member is where its class is moved.
  step(step&& other) noexcept : step(other.model_, other.optimizer_, other.numbers_) {
    detail::reject_call<rule::U51, Recipe>();
  }
  step& operator=(step const&) = delete;

  /// Takes one micro-batch. `loss_of(batch)` returns the mean loss as a scalar tensor, or keel::weighted_loss. With a ladder it is
  /// copied, so that the update can run again; pass std::ref to one with state. Throws data_error for an empty batch and for a loss
  /// that cannot be trained on; error (E23) for a model that was left in evaluation mode; nonfinite_error and out_of_memory_error as
  /// the recipe says, one call later for an update that was decided on a device; learning_rate_error (E18) and interference_error
  /// (E19) for a rate, a gradient or a parameter that the program changed beside the step; error (E11) for parameter groups that
  /// changed. An exception drops the update: parameters, optimizer state and buffers are as before it, unless the optimizer's step
  /// itself threw, which the message then says.
  template <class Batch, class LossOf>
  step_outcome operator()(Batch const& batch, LossOf&& loss_of) {
    if constexpr (!countable_batch<Batch>) {
      detail::reject_call<rule::U14, Batch>();
    } else if constexpr (oom::has_rung(configured.oom, oom::rung_kind::halve_micro_batch) && !sliceable_batch<Batch>) {
      detail::reject_call<rule::U15, Batch>();
    } else if constexpr (pass_type::shortens && !shortenable_batch<Batch>) {
      detail::reject_call<rule::U34, Batch>();
    } else if constexpr (!loss_function<LossOf, Batch>) {
      detail::reject_call<rule::U16, Batch>();
    } else {
      constexpr bool weighted = std::same_as<std::remove_cvref_t<std::invoke_result_t<LossOf&, Batch const&>>, weighted_loss>;
      require_batch_fits<judged, Batch, weighted>();
      replication_.begin_call();
      try {
        context_.template require_data_fits<Batch, weighted>();
        require_declared_rows(numbers_.present().accumulate, batch_traits<Batch>::rows(batch));
      } catch (...) {
        // On one rank an open update goes on with the next batch; of several all drop theirs.
        if (replication_.is_shared()) {
          replication_.tell();
          drop_update();
        }
        throw;
      }
      return told_if_it_throws([&] { return take(batch, loss_of); });
    }
    return result::accumulated{0, numbers_.present().accumulate.count};
  }

  /// The same without a batch: `loss_of()` is all there is.
  template <class LossOf>
    requires std::invocable<std::remove_reference_t<LossOf>&>
  step_outcome operator()(LossOf&& loss_of) {
    using function = std::remove_cvref_t<LossOf>;
    // A copy outlives the call, for an update that runs again; a function that keeps state is the caller's.
    constexpr bool keeps =
        (has_ladder || looks_into_incidents) && std::invocable<function const&> && std::copy_constructible<function>;
    using kept = std::conditional_t<keeps, function, std::remove_reference_t<LossOf>&>;
    return (*this)(no_batch{}, detail::without_batch<kept>{loss_of});
  }

  /// A micro-batch whose backward passes the program runs: see own_backward.hpp. Throws error (E12) while another one is open, and for
  /// an optimizer with a closure. Rejected with a loss scale (U49) and with a ladder (U50).
  [[nodiscard]] own_backward<step> open(std::int64_t rows = 1, std::int64_t tokens = 0) {
    if constexpr (configured.loss_scale.kind != loss_scale::kind::none) detail::reject_call<rule::U49, Recipe>();
    if constexpr (has_ladder) detail::reject_call<rule::U50, Recipe>();
    return own_backward<step>(*this, rows, tokens == 0 ? rows : tokens);
  }

  /// Applies the last, partial accumulation, weighted by what it holds; nothing if there is none. Of several ranks all call it, and
  /// it is dropped where one of them has none.
  std::optional<step_outcome> flush() {
    std::optional<step_outcome> last;
    if (!replication_.all_have(open_)) drop_update();
    if (open_) {
      replication_.begin_call();
      last = told_if_it_throws([&] {
        require_not_own();
        auto const run_rest = [this] { replay_.run_rest(); };
        return has_closure() ? advance_with_closure(true, run_rest) : advance(true, run_rest);
      });
    }
    if (last && last->is<result::gave_up>()) return last;
    if (auto settled = settle()) last = settled;
    return last;
  }

  /// Trains more of the model's parameters from here on, as a group of the optimizer with this rate, which a schedule multiplies: they
  /// require grad, and a checkpoint knows them. Those that are trained already stay as they are. Throws error: E12 inside an update, E11 for
  /// a tensor that is not the model's.
  void unfreeze(std::vector<at::Tensor> const& which, double rate) {
    settle();
    if (!at_boundary())
      throw error("E12", "parameters are unfrozen between updates, and one is open. Do it at the beginning of an epoch.");
    replication_.require_trainable(which);
    std::size_t const before = parameters_.tensors.size();
    if (!train_more(model_, optimizer_, parameters_, which, rate)) return;
    schedule_.add_group(rate);
    pass_.parameters_changed();
    average_.add(parameters_, before);
    replication_.parameters_changed();
    ++unfrozen_groups_;
  }
  /// The reverse for the optimizer's last group, as a rollback to before it needs; false where no group was unfrozen.
  bool refreeze_last_group() {
    if (unfrozen_groups_ == 0) return false;
    --unfrozen_groups_;
    std::size_t const count = train_less(model_, optimizer_, parameters_);
    schedule_.remove_last_group();
    pass_.parameters_changed();
    average_.remove_last(count);
    replication_.parameters_changed();
    return true;
  }

  /// Changes .accumulate or .clip, where the recipe leaves them open, from the next update on; a checkpoint knows it. A schedule goes on
  /// over the length that the run began with. Throws recipe_error: E22 for another number, and with the rules that they break; error
  /// (E12) inside an update.
  void change(numbers const& some)
    requires(detail::recipe_numbers<recipe>::are_open)
  {
    settle();
    if (!at_boundary())
      throw error("E12",
                  "numbers change between updates, and one is open. Change them in a hook of epoch_begin or "
                  "evaluated, or between two calls of step().");
    config present = numbers_.present();
    detail::change_numbers(present, config_of<recipe>, some);
    context_.change(present);
    take_numbers(present);
  }

  /// Drops an open update; nothing of it was or will be applied.
  void drop_update() {
    // Also if putting buffers and state back throws.
    auto const ends = c10::make_scope_exit([this] { end_update(); });
    if (open_) dropped_at_ = pass_.memory().interrupted();
    clear_gradients(parameters_.tensors);
    if (engine_ != nullptr) replication_.inside([&] { engine_->forget_prepared(); });
    settled_.reset();
    pass_.drop();
  }
  /// Tells the observer what was found in layers, and waits for what is on its way.
  void finish_layers() { show_layers(true); }
  /// State of the program that an update which does not take place leaves as it was; it outlives the step.
  void restore_on_skip(program_state& state) { pass_.restore_on_skip(state); }
  /// Another model that loss functions run through, whose buffers an update that does not take place leaves as they were too.
  void restore_on_skip(torch::nn::Module& other) {
    pass_.buffers().add(other);
    trace_.add(other);
    replication_.add_buffers_of(other);
  }
  /// That model may be gone from here on.
  void forget(torch::nn::Module& other) { trace_.remove(other), replication_.remove_buffers_of(other); }

  /// What it does with the other ranks of a recipe that replicates.
  /// Of the update that is being accumulated.
  std::int64_t open_micro_batches() const { return micro_batches_; }
  auto& ranks() { return replication_; }
  /// All ranks, at an update boundary: throws world_error for parameters, buffers or options of the optimizer that are not rank 0's.
  void verify_replicas() {
    replication_.abort_peers_on_exception([&] { replication_.verify_replicas(); });
  }
  auto const& ranks() const { return replication_; }
  /// Waits for an update that is under way on a device; throws as its call would have.
  std::optional<step_outcome> settle() {
    if (!pending_) return std::nullopt;
    average_.require_parameters_in_place();
    pass_.before_late_hooks();
    detail::pending_update update = std::move(*pending_);
    pending_.reset();
    detail::raised const closing(closing_);
    step_outcome result = detail::late_update<step>(*this).close(std::move(update));
    trace_.settled(open_);
    pass_.after_late_hooks();
    return result;
  }
  /// An update is under way on a device, and the counts below are those before it.
  bool is_pending() const { return pending_.has_value(); }
  /// Updates that were applied; one that is under way on a device is not.
  std::int64_t updates() const { return updates_; }
  std::int64_t skipped() const { return skipped_; }
  /// Both, and one that is under way.
  std::int64_t attempted() const { return begun() + skipped_; }
  /// The share of the applied updates that the clip policy changed; 0 before the first.
  double clip_fraction() const { return updates_ == 0 ? 0.0 : static_cast<double>(clipped_) / static_cast<double>(updates_); }
  /// Into how many pieces each micro-batch is cut, after rungs that were taken.
  std::int64_t pieces() const { return ladder_.relief().pieces; }
  /// What the recipe, and the rungs that were taken, do for memory.
  memory_settings const& relief() const { return ladder_.relief(); }
  auto& ladder() { return ladder_; }
  double learning_rate() const { return schedule_.rate(); }
  double loss_scale() const { return scaler_.factor(); }
  /// Runs an update again that was read from a file, and leaves everything as it is. `forward` as keel::update_trace takes it.
  traced_update replay(kept_update const& kept, update_trace::forward_pass const& forward, replay_settings settings) {
    settings.program = pass_.registered();
    return trace_.look(kept, forward, settings);
  }
  /// The optimizer threw inside its step: parameters may be partly updated, and only a checkpoint is consistent.
  bool is_half_updated() const { return half_updated_; }
  /// How far the open update came, or the last one if it was dropped; nothing where memory is not counted.
  std::optional<memory::shortage> shortage() { return open_ ? pass_.memory().interrupted() : dropped_at_; }
  /// Of the parameters, where the recipe has keel::ema.
  moving_average& average()
    requires(averages)
  {
    settle();
    return average_;
  }
  bool has_open_update() const { return open_; }
  /// No update is open or being closed: everything that a checkpoint holds belongs together.
  bool at_boundary() const { return !open_ && !closing_; }
  /// The recipe with this step's numbers in it.
  config const& recipe_value() const { return numbers_.value(); }
  /// With those that were changed since.
  config const& present_value() const { return numbers_.present(); }
  /// For another step with the same.
  detail::recipe_numbers<recipe> const& recipe_numbers() const { return numbers_; }
  parameter_list const& parameters() const { return parameters_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  torch::nn::Module& model() const { return model_; }
  run_facts const& facts() const { return context_.run(); }
  /// The run's length, where the step was made with run_facts::length_of_batches. Throws recipe_error with the rules that it breaks.
  void set_length(std::int64_t updates) {
    context_.set_length(updates);
    schedule_.set_run_length(updates);
  }
  lr_schedule& schedule() { return schedule_; }
  /// Where the time goes.
  auto& phases() { return pass_.phases(); }
  update_guards& guards() { return guards_; }
  /// What the source of the batches says of itself; asked with the first batch.
  void add_facts(data::settings const& data) { context_.add_facts(data); }

  /// Everything that a resumed run needs of the step itself, apart from the model and the optimizer.
  template <class Archive>
  void visit(Archive& archive) {
    settle();
    // Of an open update, as one that is kept to be looked into, the device goes on with its scale.
    if (!open_) device_scale_.reset();
    archive("updates", updates_);
    archive("skipped", skipped_);
    archive("clipped", clipped_);
    guards_.visit(archive);
    archive("ladder", ladder_);
    archive("scaler", scaler_);
    archive("schedule", schedule_);
    archive("clip", clip_state_);
    if constexpr (detail::recipe_numbers<recipe>::are_open) {
      // A number that was never changed is the program's, which a resume may bring another one of.
      bool is_changed = numbers_.is_changed();
      config present = numbers_.present();
      archive("numbers_changed", is_changed);
      archive("accumulate_now", present.accumulate.count);
      archive("clip_now", present.clip.limit);
      if constexpr (requires { Archive::reads; }) take_numbers(is_changed ? present : recipe_value());
    }
    if constexpr (averages) archive("average", average_);
    if constexpr (requires { Archive::reads; }) {
      repeated_.forget();
      pass_.layers().forget();
    }
  }

 private:
  static constexpr bool has_ladder = configured.oom.kind == oom::kind::ladder;
  using clip_policy = policy_of<recipe, slot::clip>;
  using schedule_policy = policy_of<recipe, slot::schedule>;
  using pass_type = detail::update_pass<recipe, Environment>;
  static constexpr bool looks_into_incidents =
      configured.incident.kind != incident::kind::off && detail::looks_into_incidents<Observer>();
  static constexpr reason bad_gradient =
      configured.loss_scale.kind == loss_scale::kind::dynamic ? reason::scale_overflow : reason::nonfinite_gradient;

  friend own_backward<step>;
  friend detail::closure_update<step>;
  friend detail::late_update<step>;
  friend detail::replicated_update<step>;
  template <class, class>
  friend class trainer;
  template <class, class>
  friend class part;
  using autocast = typename Environment::autocast;
  /// The host waits for it.
  static double read(at::Tensor const& one) { return Environment::host_value(one); }

  /// An exception of `run` drops the update, and the other ranks learn of it.
  template <class Run>
  std::invoke_result_t<Run const&> told_if_it_throws(Run const& run) {
    try {
      return run();
    } catch (...) {
      replication_.tell();
      drop_update();
      throw;
    }
  }

  template <class Batch, class LossOf>
  step_outcome take(Batch const& batch, LossOf& loss_of) {
    average_.require_parameters_in_place();
    require_not_own();
    if constexpr (oom::has_rung(configured.oom, oom::rung_kind::halve_micro_batch)) require_same_rows(batch);
    if (!open_) begin();
    // On the stack where the batch outlives its update.
    [[maybe_unused]] std::optional<detail::taken_batch_of<Batch const&, LossOf&>> here;
    if constexpr (looks_into_incidents) keep(batch, loss_of, here);
    std::int64_t const index = micro_batches_++;
    bool const complete = micro_batches_ == numbers_.present().accumulate.count;
    constexpr bool may_accumulate = config_of<recipe>.accumulate.count != 1;
    if constexpr (has_ladder || (may_accumulate && std::copy_constructible<Batch> && std::copy_constructible<LossOf>)) {
      if (has_ladder || has_closure()) {
        // The update may have to run again from its first micro-batch; a copied batch shares its tensors' memory.
        replay_.add(max_pieces(batch, granularity_of(batch, pass_.granularity())),
                    [this, batch, loss_of](std::int64_t place) mutable { run(batch, loss_of, place); });
        if (has_closure()) return advance_with_closure(complete, [this] { replay_.rewind(), replay_.run_rest(); });
        return advance(complete, [this] { replay_.run_rest(); });
      }
    }
    auto const run_it = [&] { run(batch, loss_of, index); };
    if (has_closure()) {
      if (!complete)
        throw error("E12",
                    "an optimizer with a closure sums micro-batches that can be copied, and this type of batch or loss "
                    "function cannot. Use keel::accumulate<1>.");
      return advance_with_closure(complete, run_it);
    }
    return advance(complete, run_it);
  }

  // A micro-batch whose backward passes the program runs.
  void begin_own() {
    average_.require_parameters_in_place();
    require_not_own();
    if (has_closure())
      throw error(
          "E12", "an optimizer with a closure evaluates the loss itself. Give the step a loss function: step(batch, loss_of).");
    replication_.begin_call();
    told_if_it_throws([&] {
      if (!open_) begin();
      if (!pass_.is_open()) open_update();
      trace_.cannot_add("the program runs its backward passes itself");
      observe_(event::micro_batch_begin{begun(), micro_batches_});
      pass_.begin_own();
      is_own_open_ = true;
    });
  }
  step_outcome end_own(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) {
    return told_if_it_throws([&] {
      is_own_open_ = false;
      require_declared_rows(numbers_.present().accumulate, rows);
      detail::loss_accumulator const tally = pass_.end_own(loss, rows, tokens);
      tell_end(tally, micro_batches_);
      ++micro_batches_;
      return advance(micro_batches_ == numbers_.present().accumulate.count, [] {});
    });
  }
  void abandon_own() {
    is_own_open_ = false;
    replication_.tell(std::make_exception_ptr(error("E12", "a micro-batch of the program's own was not closed")));
    drop_update();
  }
  void require_not_own() const {
    if (is_own_open_) throw error("E12", "a micro-batch is open by step.open(). Call its close(loss) before the next one.");
  }

  /// Rejected (U56) where the recipe needs one.
  static void require_world() {
    if constexpr (replicates) detail::reject_call<rule::U56, Recipe>();
  }

  void take_numbers(config const& present) {
    numbers_.change(present);
    pass_.take_numbers(present);
  }

  /// For an update that has to be looked into.
  template <class Batch, class LossOf>
  void keep(Batch const& batch, LossOf& loss_of, std::optional<detail::taken_batch_of<Batch const&, LossOf&>>& here) {
    if (!trace_.is_on()) return;
    std::int64_t const granularity = granularity_of(batch, pass_.granularity());
    if (numbers_.present().accumulate.count == 1 && !decides_on_device_) {
      trace_.add(here.emplace(batch, loss_of, granularity));
    } else if constexpr (std::copy_constructible<Batch> && std::copy_constructible<LossOf>) {
      using kept = detail::taken_batch_of<Batch, std::remove_const_t<LossOf>>;
      trace_.add(std::make_unique<kept>(batch, loss_of, granularity));
    } else {
      trace_.cannot_add("the batch or the loss function cannot be copied");
    }
  }

  /// Before an update's first micro-batch; what follows may happen again.
  void begin() {
    decides_on_device_ = can_decide_on_device();
    if (!decides_on_device_) settle();
    require_same_groups(parameters_, optimizer_);
    detail::require_training_mode(model_);
    repeated_.require_none(optimizer_);
    replication_.require_own_state();
    repeated_.forget();
    if constexpr (has_ladder) relieve_allocator();
    detail::name_out_of_memory(begun(), [&] { replication_.inside([&] { ladder_.prepare(); }); });
    trace_.begin(pending_.has_value());
    open_ = true;
    dropped_at_.reset();
    pass_.memory().begin(detail::watches_memory(observe_));
    observe_(event::update_begin{begun()});
  }

  /// Between updates: a rung for an allocator that loses time.
  void relieve_allocator() {
    auto const retries = Environment::allocator_retries(parameters_.tensors.front().device());
    bool const thrashes = ladder_.thrashes(retries);
    if (replication_.is_shared()) return replication_.ask_for_rung(thrashes);
    if (agree(world_, thrashes).value()) take_rung_for_time();
  }
  /// Where no rung is left the run goes on as slowly as it did.
  void take_rung_for_time() {
    take_rung("the allocator had to give its cache back and try again in 3 of the last 10 updates", false);
  }

  /// Runs what is left of the update's micro-batches, and closes a `complete` update. Until the optimizer steps all
  /// of it may begin again on the next rung.
  step_outcome advance(bool complete, c10::function_ref<void()> run_rest) {
    std::optional<detail::update_decision> decision;
    auto const attempt = [&] {
      if (!pass_.is_open()) open_update();
      run_rest();
      if (complete) decision.emplace(decide());
    };
    if (auto gave_up = attempt_update(complete, attempt)) return *gave_up;
    if (!decision) return result::accumulated{micro_batches_, numbers_.present().accumulate.count};
    step_outcome const result =
        decides_on_device_ ? detail::late_update<step>(*this).finish(std::move(*decision)) : finish(std::move(*decision));
    if constexpr (has_ladder)
      if (replication_.take_rung_request()) take_rung_for_time();
    return result;
  }

  /// What ends the update, if anything does before it is decided.
  std::optional<step_outcome> attempt_update(bool complete, c10::function_ref<void()> attempt) {
    if constexpr (has_ladder) {
      auto const next = [this](std::string const& message) -> std::optional<step_outcome> {
        pass_.step_back();
        // Ranks that ran out before they knew of the update before this one, and those that did not, take the rung behind the same.
        if (pending_) replication_.abort_peers_on_exception([&] { detail::late_update<step>(*this).settle_before(); });
        replay_.rewind();
        if (take_rung(message) != oom::rung_kind::give_up) return std::nullopt;
        drop_update();
        return result::gave_up{reason::out_of_memory, message};
      };
      auto const attempt_of_ranks = [&] { replication_.begin_call(), attempt(); };
      return replay_.attempt_until_it_fits(world_, complete, attempt_of_ranks, next,
                                           [this] { replication_.tell_out_of_memory(); });
    } else {
      detail::name_out_of_memory(begun(), attempt);
      return std::nullopt;
    }
  }

  bool is_first() const { return updates_ == 0 && skipped_ == 0 && !pending_; }
  bool has_closure() const { return context_.optimizer().closure; }

  /// For an optimizer with a closure: the micro-batches wait until all are there, and `run_all` runs them once an evaluation.
  step_outcome advance_with_closure(bool complete, c10::function_ref<void()> run_all) {
    std::optional<detail::update_decision> decision;
    auto const attempt = [&] {
      if (!complete) return;
      if (!pass_.is_open()) open_update();
      decision.emplace(detail::closure_update<step>(*this, run_all).run());
    };
    if (auto gave_up = attempt_update(complete, attempt)) return *gave_up;
    if (!decision) return result::accumulated{micro_batches_, numbers_.present().accumulate.count};
    if (decision->skip_reason) {
      pass_.skip();
      return skip(decision->facts, *decision->skip_reason, decision->where, decision->loss, decision->norm);
    }
    pass_.begin_update();
    pass_.layers().after_update(updates_ + 1);
    return accept(decision->facts, decision->loss, decision->norm, false);
  }

  void open_update() {
    if (!pending_) average_.begin();
    if (decides_on_device_ && !device_scale_ && configured.loss_scale.kind == loss_scale::kind::dynamic) {
      device_scale_.emplace(recipe_value().loss_scale, scaler_, parameters_.tensors.front().device());
    }
    bool const on_device = decides_on_device_ && device_scale_;
    pass_.layers().begin(detail::watches_layers(observe_));
    losses_stay_on_device_ = decides_on_device_ || Environment::decides_on_device(parameters_.device);
    pass_.open(on_device ? 1.0 : scaler_.factor(), on_device ? device_scale_->factor() : at::Tensor(), losses_stay_on_device_);
  }

  /// The next rung, which all ranks take together; hooks are called.
  oom::rung_kind take_rung(std::string const& message, bool may_give_up = true) {
    oom::rung_kind rung{};
    replication_.abort_peers_on_exception([&] {
      auto const pieces = agree(world_, replay_.max_pieces()).value();
      replication_.inside([&] { rung = ladder_.take_next(pieces, begun(), detail::all_and_any(world_)); });
    });
    if (rung != oom::rung_kind::give_up || may_give_up)
      observe_(event::out_of_memory{begun(), to_string(rung), message, ladder_.relief().pieces, !may_give_up, shortage()});
    return rung;
  }

  void end_update() {
    open_ = false;
    micro_batches_ = 0;
    pass_.close();
    replay_.clear();
    trace_.end(pending_.has_value());
  }

  template <class Batch, class LossOf>
  void run(Batch const& batch, LossOf& loss_of, std::int64_t index) {
    observe_(event::micro_batch_begin{begun(), index});
    if constexpr (replicates) {
      if (index + 1 == numbers_.present().accumulate.count) detail::replicated_update<step>(*this).agree_in_backward();
    }
    tell_end(pass_.run(batch, loss_of, ladder_.relief()), index);
  }
  void tell_end(detail::loss_accumulator const& tally, std::int64_t index) {
    // A hook changes nothing of how an update is decided; on a device it costs a wait.
    bool const asks = losses_stay_on_device_ && detail::reads_losses(observe_);
    double const loss = asks && tally.is_on_device() ? read(tally.mean_on_device()) : tally.mean();
    observe_(event::micro_batch_end{begun(), index, loss, tally.weight});
  }

  /// What a complete update comes to, and everything that applying it may allocate; nothing has changed yet.
  detail::update_decision decide() {
    average_.require_parameters_in_place();
    pass_.memory().enter(memory::phase::update);
    pass_.phases().enter(run_phase::update);
    detail::update_sums const& sums = pass_.sums();
    if constexpr (replicates) return detail::replicated_update<step>(*this).decide();
    require_declared_update(numbers_.present().accumulate, micro_batches_, sums.rows * context_.run().world_size, is_first());
    if (decides_on_device_) detail::late_update<step>(*this).settle_before();
    detail::update_decision found{{scaler_.factor(), 0.0, sums.tokens, sums.rows, decides_on_device_}};
    found.facts.parts = sums.parts;
    found.facts.origin = detail::origin_of(sums);
    if (pass_.has_zero_weight()) {
      found.skip_reason = reason::zero_weight;
      found.loss = found.norm = std::numeric_limits<double>::quiet_NaN();
      return found;
    }
    if (decides_on_device_) {
      // There is nothing for the device to decide.
      if (!sums.exception.empty() && !pass_.has_gradients()) {
        found.skip_reason = reason::nonfinite_loss;
        return found;
      }
      detail::late_update<step>(*this).decide(found, pass_.complete(), sums.loss.mean_on_device());
      return found;
    }
    auto const is_finite = [&](double loss) {
      found.loss = found.norm = loss;
      if (std::isfinite(loss)) return true;
      found.skip_reason = reason::nonfinite_loss;
      found.where = sums.parts.first_nonfinite(read);
      return false;
    };
    if (!losses_stay_on_device_ && !is_finite(sums.loss.mean())) return found;
    auto result = pass_.complete().unscale().check();
    // The gradients' norm, for which the host waited, came after it.
    if (losses_stay_on_device_ && !is_finite(read(sums.loss.mean_on_device()))) return found;
    judge(found, std::move(result));
    return found;
  }

  /// The host's verdict on the gradients of a finite loss.
  void judge(detail::update_decision& found, std::variant<gradients<stage::checked>, nonfinite_gradient> result) {
    if (auto const* nonfinite = std::get_if<nonfinite_gradient>(&result)) {
      found.skip_reason = bad_gradient;
      found.where = parameters_.names[nonfinite->parameter];
      found.norm = nonfinite->norm;
      return;
    }
    auto& checked = std::get<gradients<stage::checked>>(result);
    found.norm = checked.norm();
    found.skip_reason =
        std::isfinite(found.norm) ? guards_.spike().judge(found.loss, found.norm) : std::optional<reason>(bad_gradient);
    if (found.skip_reason || is_spoiled(found) || overflows_squared(found)) return;
    if (detail::reads_gradients(observe_)) show_gradients(found.norm, checked.unscaled());
    if (pass_.layers().is_on()) pass_.layers().gradients(checked.norms(), checked.factor());
    next_clip_state_ = clip_state_;
    found.clipped.emplace(std::move(checked).template clip<clip_policy>(next_clip_state_, numbers_.present().clip));
    replication_.inside_with_gradients([&] { found.clipped->prepare(optimizer_); });
    replication_.prepare_update();
  }
  double squarable_norm() const { return keel::squarable_norm(optimizer_, parameters_); }
  /// The optimizer's state would be infinite for good. Clip policies that look at elements bound each of them.
  bool overflows_squared(detail::update_decision& found) const {
    if constexpr (needs_whole_gradients<clip_policy>) return false;
    double const limit = norm_limit<clip_policy>(clip_state_, numbers_.present().clip);
    if (!(std::min(found.norm, limit) > squarable_norm())) return false;
    found.skip_reason = reason::nonfinite_gradient;
    found.facts.origin = squarable_words(found.norm);
    return true;
  }

  /// A batch whose values are finite may still have made statistics infinite, with which every later evaluation is lost.
  bool is_spoiled(detail::update_decision& found) {
    found.where = pass_.buffers().first_spoiled();
    if (!found.where.empty()) found.skip_reason = reason::nonfinite_buffer;
    return !found.where.empty();
  }

  void show_gradients(double norm, std::vector<at::Tensor> const& unscaled) {
    detail::show_gradients(parameters_, unscaled,
                           [&] { observe_(event::gradients_ready{begun(), norm, parameters_.tensors}); });
  }
  void show_layers(bool wait) {
    while (auto const found = pass_.layers().take(wait)) observe_(event::layers_measured{found->update, *found});
  }

  /// Applies the update, or skips it.
  step_outcome finish(detail::update_decision found) {
    if (found.skip_reason || !found.clipped) {
      pass_.skip();
      return skip(found.facts, found.skip_reason.value_or(bad_gradient), found.where, found.loss, found.norm);
    }
    bool const was_clipped = found.clipped->clipped();
    replication_.update([&] {
      begin_update(found.facts);
      std::swap(clip_state_, next_clip_state_);
      half_updated_ = true;
      step_optimizer([&] { replication_.inside_with_gradients([&] { std::move(*found.clipped).step(optimizer_); }); });
    });
    pass_.layers().after_update(updates_ + 1);
    repeated_.take(optimizer_, parameters_);
    step_outcome const result = accept(found.facts, found.loss, found.norm, was_clipped);
    replication_.abort_peers_on_exception([&] { replication_.look_at_replicas(); });
    return result;
  }

  /// The last look before parameters change. Throws learning_rate_error (E18).
  void begin_update(detail::update_facts& facts) {
    schedule_.require_sound(begun() + 1);
    schedule_.apply(optimizer_);
    facts.learning_rate = schedule_.rate();
    pass_.begin_update();
  }
  template <class Update>
  void step_optimizer(Update const& update) {
    pass_.layers().before_update();
    if (engine_ != nullptr) {
      detail::name_out_of_memory_inside_engine(updates_, update);
    } else {
      detail::name_out_of_memory_inside_update(updates_, update);
    }
  }

  /// Updates that were applied, and the one that is under way.
  std::int64_t begun() const { return updates_ + (pending_ ? 1 : 0); }

  /// Everything that follows an update that took place.
  step_outcome accept(detail::update_facts const& facts, double loss, double norm, bool clipped) {
    step_outcome const result = result::updated{loss, norm, facts.learning_rate, clipped};
    scaler_.update(false);
    schedule_.advance(result);
    guards_.accepted(result);
    trace_.accepted();
    if constexpr (clip_policy::configured.kind == clip::kind::zscore) clip_state_.accepted(result);
    detail::name_out_of_memory_inside_update(updates_, [&] { average_.update(result); });
    ++updates_;
    half_updated_ = false;
    if (clipped) ++clipped_;
    // While the update is open, as for update_end: a hook is at no boundary yet.
    if constexpr (has_ladder) {
      if (auto const rung = ladder_.updated())
        observe_(event::rung_released{updates_, to_string(*rung), ladder_.relief().pieces});
    }
    return close(facts, result, loss, norm);
  }

  /// The update was skipped; the policy says whether the run tolerates it.
  step_outcome skip(detail::update_facts const& facts, reason why, std::string const& where, double loss, double norm) {
    // At the floor the scale cannot be lowered further, so the overflow counts as a non-finite gradient (P07).
    bool const at_floor =
        why == reason::scale_overflow && configured.nonfinite.kind != nonfinite::kind::raise && scaler_.is_at_floor();
    if (at_floor) why = reason::nonfinite_gradient;
    std::string const origin = facts.origin.empty() ? look_into(facts, why, where, loss, norm) : facts.origin;
    ++skipped_;
    pass_.layers().forget(updates_ + 1);
    if (at_floor) scaler_.hold_at_floor();
    // Before hooks are called, which may throw: the device's scale has backed off too.
    if (why == reason::scale_overflow) scaler_.update(true);
    step_outcome result = close(facts, result::skipped{why, where, origin}, loss, norm);
    if (why == reason::scale_overflow) return result;
    guards_.skipped(why, where, origin, loss, norm, updates_ + 1);
    return result;
  }

  /// Where it began, in words; empty where that is not asked for.
  std::string look_into([[maybe_unused]] detail::update_facts const& facts, [[maybe_unused]] reason why,
                        [[maybe_unused]] std::string const& where, [[maybe_unused]] double loss, [[maybe_unused]] double norm) {
    if constexpr (looks_into_incidents) {
      if (!trace_.takes(why)) return "";
      bool const is_before = facts.late && open_;
      auto const forward = [this](taken_batch& batch, std::int64_t begin, std::int64_t end, unit_listener* units) {
        return pass_.forward_again(batch, begin, end, units, ladder_.relief());
      };
      replay_settings const settings{facts.loss_scale, ladder_.relief().pieces, ladder_.relief().length, pass_.registered()};
      detail::optimizer_shares::inside const shares(replication_.shares());
      traced_update traced = trace_.look(is_before, forward, settings);
      if (why == reason::nonfinite_buffer) traced.origin = trace_.origin_of_buffer(trace_.kept(is_before), where);
      observe_(event::incident{updates_, why, where, loss, norm, facts.loss_scale, traced, trace_.kept(is_before), settings});
      return to_sentence(traced.origin);
    } else {
      return "";
    }
  }

  step_outcome close(detail::update_facts const& facts, step_outcome result, double loss, double norm) {
    if (!facts.late) pass_.phases().stop();
    auto const losses = facts.parts.values(read);
    // The update is still open: a hook is not at a boundary, where the cursor already counts this update.
    observe_(event::update_end{updates_, result, loss, norm, facts.loss_scale, facts.tokens, facts.rows, facts.late,
                               facts.late ? facts.memory : pass_.memory().end(),
                               facts.late ? facts.times : pass_.phases().take(), losses});
    show_layers(false);
    if (!decides_on_device_) end_update();
    return result;
  }

  bool can_decide_on_device() const {
    if constexpr (needs_whole_gradients<clip_policy>) return false;
    // By the time a late result is read, the next forward pass has changed the buffers.
    if constexpr (averages && configured.ema.buffers) return false;
    // The program's state is put back on the host, which then has to know at once.
    if (pass_.has_program_state()) return false;
    return engine_ != nullptr && parameters_.one_device && Environment::decides_on_device(parameters_.device);
  }

  [[no_unique_address]] detail::recipe_numbers<recipe> numbers_;
  std::int64_t updates_ = 0, skipped_ = 0, clipped_ = 0;
  torch::nn::Module& model_;
  torch::optim::Optimizer& optimizer_;
  update_engine* engine_;  ///< the optimizer, if it is one
  parameter_list parameters_;
  context_type context_;
  bool half_updated_ = false;
  grad_scaler scaler_;
  lr_schedule schedule_;
  /// The next one counts once the update is certain.
  state_of<clip_policy> clip_state_ = detail::begin_clip_state<clip_policy>(recipe_value().clip),
                        next_clip_state_ = clip_state_;
  pass_type pass_{model_, parameters_, recipe_value()};
  update_trace trace_{recipe_value().incident, model_, optimizer_, parameters_};
  update_guards guards_{recipe_value()};
  repeated_step_watch repeated_;
  memory_ladder<policy_of<recipe, slot::oom>> ladder_{recipe_value(), model_, engine_, parameters_.device};
  detail::average_if<averages> average_{detail::averaged_tensors(model_, parameters_, configured.ema.buffers),
                                        recipe_value().ema.decay,
                                        detail::averaged_names(model_, parameters_, configured.ema.buffers)};
  Observer observe_;

  // The open update. Between updates all of it is empty, which is why a checkpoint is only taken there.
  bool open_ = false;
  std::optional<memory::shortage> dropped_at_;
  std::int64_t micro_batches_ = 0;
  update_replay replay_;
  [[no_unique_address]] world_type world_;
  [[no_unique_address]] detail::replication_if<replicates> replication_;

  // Of updates that are decided on the device: the one that the host has not read, and the scale that it does not know yet.
  bool decides_on_device_ = false;
  bool losses_stay_on_device_ = false;  ///< also where the host decides: it reads them with the norm
  bool closing_ = false;
  bool is_own_open_ = false;  ///< the program runs backward passes
  std::size_t unfrozen_groups_ = 0;
  std::optional<detail::pending_update> pending_;
  std::optional<step_outcome> settled_;  ///< of the update before the open one
  std::optional<device_scale> device_scale_;
};

}  // namespace keel::inline KEEL_MODE
