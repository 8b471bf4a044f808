// keel::part, one of the models of a keel::run: a model, an optimizer and a recipe.
//     keel::part<critic_recipe> critic{run, "critic", critic_model, critic_optimizer};
//     keel::step_outcome outcome = critic.update(batch, loss_of);          or update(loss_of), or open() and close()
// If one optimizer trains after another has finished, such as LBFGS after Adam, the second part may have the same parameters:
//     keel::part<fine> lbfgs{run, "lbfgs", model, lbfgs_optimizer, keel::after(adam)};
#pragma once

#include <concepts>
#include <cstdint>
#include <keel/core/out_of_memory.hpp>
#include <keel/shard/replicas.hpp>
#include <keel/trainer/dry_run_calls.hpp>
#include <keel/trainer/run.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Names the part after which another one trains.
struct after {
  /// The other part.
  detail::run_part& part;
  /// `one`: the other part, which must outlive the new one.
  explicit after(detail::run_part& one) : part(one) {}
};

/// A model with its optimizer and recipe in a keel::run. All ranks make the same calls.
template <class Recipe, class Environment = environment>
class part final : public detail::run_part,
                   public dry_run_calls<part<Recipe, Environment>, detail::typed_step<Recipe, Environment, detail::part_entry>>,
                   private step_observer,
                   private detail::manual_backward_owner {
  using validated = detail::validated<Recipe, detail::part_entry>;
  using recipe_type = typename validated::recipe;
  using step_type = detail::typed_step<Recipe, Environment, detail::part_entry>;

 public:
  /// The recipe's configuration, without the numbers that are supplied at run time.
  static constexpr config configured = step_type::configured;

  /// Run, model and optimizer must outlive the part. `name`: letters, digits and underscores. A part may also be created during the run,
  /// between two updates. If the checkpoint from which the run resumed contains the part, create it before the loop, or at the start of the
  /// first iteration, before random numbers are drawn; its state is then restored. Throws error (E11) for a name or a parameter that
  /// another part has, checkpoint_error if it does not match the checkpoint, and what the constructor of keel::step throws.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer)
      : part(of, std::move(name), model, optimizer, nullptr, without_numbers()) {}
  /// Constructs a part that trains after another one.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, after follows)
      : part(of, std::move(name), model, optimizer, &follows.part, without_numbers()) {}
  /// Constructs a part with a recipe that leaves numbers open.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, numbers const& all)
      : part(of, std::move(name), model, optimizer, nullptr, detail::recipe_numbers(config_of<recipe_type>, all)) {}
  /// Constructs a part that trains after another one, with a recipe that leaves numbers open.
  template <class Run, class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, after follows, numbers const& all)
      : part(of, std::move(name), model, optimizer, &follows.part, detail::recipe_numbers(config_of<recipe_type>, all)) {}
  ~part() { models_.remove(*this); }

  /// Trains on one micro-batch, like a call of keel::step. Throws what that call throws, and out_of_memory_error (E09) if the ladder has no
  /// rung left.
  template <class Batch, class LossOf>
  step_outcome update(Batch const& batch, LossOf&& loss_of) {
    return run_in_loop([&] { return step_(batch, loss_of); });
  }
  /// Trains on one micro-batch without a batch object, by calling `loss_of()`.
  template <class LossOf>
    requires std::invocable<std::remove_reference_t<LossOf>&>
  step_outcome update(LossOf&& loss_of) {
    return run_in_loop([&] { return step_(loss_of); });
  }
  /// Opens a micro-batch for which the program runs the backward passes (step/manual_backward.hpp).
  [[nodiscard]] manual_backward open(std::int64_t rows = 1, std::int64_t tokens = 0) {
    detail::reject_manual_backward<Recipe, configured>();
    return {*this, step_.parameters().device,  step_.environment().autocast(configured.precision.kind), step_.relief(),
            rows,  tokens == 0 ? rows : tokens};
  }
  /// Applies the last, partial accumulation, like step::flush. After the loop, records and saves the update like an iteration.
  std::optional<step_outcome> flush() {
    bool const is_outside_iteration = !loop_.is_in_iteration();
    std::optional<step_outcome> last;
    loop_.update(*this, [&] { last = step_.flush(); });
    if (is_outside_iteration) loop_.end_flush();
    return last;
  }

  /// Unfreezes parameters of this part's model, like trainer::unfreeze. Throws what step::unfreeze throws, and error (E11) for a parameter
  /// that another part trains.
  template <class Module>
  void unfreeze(Module& module, double rate = 0.0) {
    auto const which = as_module(module).parameters();
    models_.require_unowned(*this, which);
    run_part::unfreeze(which, rate > 0.0 ? rate : step_.schedule().highest(0));
  }
  /// Same as trainer::change.
  void change(numbers const& changes)
    requires(detail::leaves_numbers_open<recipe_type>)
  {
    config const before = step_.current_config();
    step_.change(changes);
    loop_.record_change(*this, before, step_.current_config());
  }
  /// Adds a hook for the events of this part's updates.
  template <class Hook>
  void on(Hook hook) {
    hooks_.add(std::move(hook));
  }
  /// Swaps the moving average into the model for the lifetime of the returned value. Requires keel::ema.
  [[nodiscard]] auto averaged()
    requires(step_type::has_average)
  {
    return step_.average().swap_in(step_.model());
  }

  /// The part's name in checkpoints and in the record.
  std::string const& name() const { return run_part::name(); }
  /// Applied updates.
  std::int64_t updates() const { return step_.updates(); }
  /// Skipped updates.
  std::int64_t skipped() const { return step_.skipped(); }
  /// Fraction of the applied updates that were clipped.
  double clip_fraction() const { return step_.clip_fraction(); }
  /// Learning rate of the first parameter group.
  double learning_rate() const { return step_.learning_rate(); }
  /// Loss scale of the next update.
  double loss_scale() const { return step_.loss_scale(); }
  /// The recipe's configuration with this part's numbers.
  config const& recipe_value() const { return step_.recipe_value(); }
  /// Memory-saving measures in effect, from the recipe and the rungs taken so far.
  memory_settings const& relief() const { return step_.relief(); }

 private:
  /// Rejected (U47) for a recipe that leaves numbers open.
  static detail::recipe_numbers without_numbers() {
    if constexpr (detail::leaves_numbers_open<recipe_type>) {
      detail::reject_call<rule::U47, Recipe>();
      return detail::recipe_numbers(config_of<recipe_type>, numbers{});
    } else {
      return detail::recipe_numbers(config_of<recipe_type>);
    }
  }

  template <class Run, class Model, class Optimizer>
  part(Run& of, std::string name, Model& model, Optimizer& optimizer, detail::run_part* follows,
       detail::recipe_numbers const& all)
      : run_part(std::move(name)),
        models_(of.models_),
        loop_(of.loop_),
        run_recipe_(of.recipe_value()),
        step_(model, optimizer, all, of.loop_.length(), *this, checked_world_of(of, this->name())) {
    // Checks the rules that involve the recipes of both the part and the run.
    if constexpr (!std::same_as<recipe_type, detail::rejected_recipe> &&
                  !std::same_as<typename Run::recipe_type, detail::rejected_recipe>) [[maybe_unused]]
      detail::verdict_of<detail::recipe_within_run<Recipe, typename Run::recipe_type>> check;
    if constexpr (step_type::is_distributed) step_.ranks().set_location("an update of the part " + this->name());
    step_.phases().use(of.options_.clock());
    step_.phases().listen(&of.loop_.parts_phase_listener());
    use(step_, detail::trained_models::model_name(*this, follows));
    of.loop_.add(*this, follows);
  }

  /// Rejected (U59) if only one of the two recipes is distributed.
  template <class Run>
  static world_of_ranks checked_world_of(Run const& of, std::string const& name) {
    constexpr bool is_rejected =
        std::same_as<recipe_type, detail::rejected_recipe> || std::same_as<typename Run::recipe_type, detail::rejected_recipe>;
    if constexpr (!is_rejected && step_type::is_distributed != Run::is_distributed)
      detail::reject_call<rule::U59, Recipe, typename Run::recipe_type>();
    if constexpr (step_type::is_distributed) detail::require_same_lines(of.ranks_.world(), "part " + name + "\n");
    return of.ranks_.world();
  }

  template <class Call>
  step_outcome run_in_loop(Call const& call) {
    std::optional<step_outcome> taken;
    loop_.update(*this, [&] { taken = call(); });
    step_outcome const outcome = *taken;
    if (auto const* const ended = outcome.gave_up()) {
      loop_.expect_exception(true);
      throw out_of_memory_error("E09", "memory ran out in part " + name() + ", and its ladder has no rung left: " +
                                           ended->detail + ". Make its batches smaller.");
    }
    return outcome;
  }

  void observe(event::update_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_begin const& event) override { hooks_(event); }
  void observe(event::micro_batch_end const& event) override { hooks_(event); }
  void observe(event::gradients_ready const& event) override { hooks_(event); }
  void observe(event::incident const& event) override {
    loop_.observe(*this, event);
    hooks_(event);
  }
  void observe(event::layers_measured const& event) override { hooks_(event); }
  void observe(event::out_of_memory const& event) override {
    loop_.observe(*this, event);
    hooks_(event);
  }
  void observe(event::rung_released const& event) override {
    loop_.observe(*this, event);
    hooks_(event);
  }
  void observe(event::update_end const& event) override {
    stats_.rows += event.rows;
    stats_.tokens += event.tokens;
    if (auto const* const updated = event.result.updated()) {
      ++stats_.applied;
      stats_.clipped += updated->clipped ? 1 : 0;
      stats_.loss += event.loss;
      stats_.gradient_norm += event.gradient_norm;
      if (!event.losses.empty()) stats_.losses.assign(event.losses.begin(), event.losses.end());
    } else if (auto const* const skipped = event.result.skipped()) {
      ++stats_.skipped;
      stats_.last_skipped = *skipped;
    }
    hooks_(event);
  }
  bool reads_losses() const override { return hooks_.template has_hook_for<event::micro_batch_end>(); }
  bool reads_gradients() const override { return hooks_.template has_hook_for<event::gradients_ready>(); }
  friend dry_run_calls<part, step_type>;
  detail::dry_run_subject dry_run_subject() { return {step_, loop_, *this, name()}; }
  config with_run_facts(config const& value) const override { return detail::merge_run_config(value, run_recipe_); }

  // Overrides of manual_backward_owner: the program runs the backward passes of a micro-batch.
  void begin_manual_backward() override {
    loop_.update(*this, [this] { step_.begin_manual_backward(); });
  }
  step_outcome end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) override {
    return run_in_loop([&] { return step_.end_manual_backward(loss, rows, tokens); });
  }
  void abandon_manual_backward() override {
    step_.abandon_manual_backward();
    loop_.expect_exception(step_.ranks().is_failure_collective());
  }

  hooks hooks_;
  detail::trained_models& models_;
  detail::parts_loop& loop_;
  config const& run_recipe_;
  step_type step_;
};

}  // namespace keel::inline KEEL_MODE
