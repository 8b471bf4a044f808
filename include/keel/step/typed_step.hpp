// The typed interface of the update. Checks the recipe against the types of model, optimizer, batch and loss, and forwards to
// step_engine.hpp. keel::step, trainers, parts of a run and dry runs are built on it.
#pragma once

#include <concepts>
#include <cstdint>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/clip/clip_mechanism.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/error.hpp>
#include <keel/core/parameters.hpp>
#include <keel/oom/cut_batch.hpp>
#include <keel/oom/memory_ladder.hpp>
#include <keel/recipe/validated.hpp>
#include <keel/schedule/lr_schedule.hpp>
#include <keel/step/any_micro_batch.hpp>
#include <keel/step/manual_backward.hpp>
#include <keel/step/observer.hpp>
#include <keel/step/recipe_context.hpp>
#include <keel/step/recipe_numbers.hpp>
#include <keel/step/require_custom_policies.hpp>
#include <keel/step/require_valid.hpp>
#include <keel/step/step_engine.hpp>
#include <keel/step/step_environment.hpp>
#include <type_traits>

namespace keel::detail::inline KEEL_MODE {

/// Returns the process-wide instance of a stateless environment. An environment with members that keel would ignore, such as those of an
/// older version, does not compile.
template <class Environment>
Environment const& environment_instance() {
  static_assert(std::is_base_of_v<step_environment, Environment>,
                "an environment must derive from keel::step_environment. Fix: add it as a base class.");
  static_assert(std::is_member_function_pointer_v<decltype(&Environment::decides_on_device)> &&
                    std::is_member_function_pointer_v<decltype(&Environment::host_value)> &&
                    std::is_member_function_pointer_v<decltype(&Environment::allocator_retries)>,
                "the functions of an environment are virtual; a static one would be ignored. Fix: override them.");
  static_assert(
      !requires { typename Environment::files; } && !requires { typename Environment::clock; } &&
          !requires { typename Environment::world; },
      "an environment's files, clock and world would be ignored. Fix: trainer_options::own_files and own_clock; "
      "pass the world to the constructor.");
  static Environment const machine{};
  return machine;
}

template <class Recipe>
custom_policies custom_policies_of() {
  return {&make_clip_mechanism<policy_of<Recipe, slot::clip>>, lr_schedule::factor_of<policy_of<Recipe, slot::schedule>>(),
          &custom_rungs<policy_of<Recipe, slot::oom>>::take};
}

/// Typed interface of step_engine. `EntryPoint` selects the rules: those of a bare step, of a trainer, or of a part.
template <class Recipe, class Environment, class EntryPoint>
class typed_step : public step_engine {
  using validated = detail::validated<Recipe, EntryPoint>;
  static_assert(alignof(typename validated::diagnostics) > 0);
  using checked_recipe = typename recipe_for_entry<typename validated::recipe, EntryPoint>::type;

 public:
  /// The recipe, or rejected_recipe if it broke a rule.
  using recipe = typename validated::recipe;
  /// The kinds of the recipe's policies. recipe_value() has the numbers.
  static constexpr config configured = kinds_of(config_of<recipe>);
  /// True if the recipe has keel::ema, so that a moving average exists.
  static constexpr bool has_average = configured.ema.decay > 0.0;
  /// True if the recipe is for several ranks.
  static constexpr bool is_distributed = shard::is_distributed(configured.shard);
  /// True if a batch may be kept after the call that received it.
  static constexpr bool keeps_batches = configured.oom.kind == oom::kind::ladder ||
                                        configured.incident.kind != incident::kind::off ||
                                        config_of<recipe>.accumulate.count != 1;
  /// True if the constructor accepts a multi-rank world.
  static constexpr bool accepts_world = is_distributed || std::same_as<recipe, rejected_recipe>;

  /// `updates`: the run's length in updates, for schedules that need it; 0: unknown. Model, optimizer and observer must outlive the step.
  /// Collective on `world` for a recipe that replicates: broadcasts parameters and buffers from rank 0. Throws recipe_error, or world_error
  /// (E24), which names the first difference, if the ranks have different configurations.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  typed_step(Model& model, Optimizer& optimizer, detail::recipe_numbers const& all, std::int64_t updates,
             step_observer& observer, world_of_ranks const& world)
      : step_engine(as_module(model), optimizer, all, rules_of<recipe, Model, Optimizer>(), custom_policies_of<recipe>(),
                    updates, observer, is_distributed ? world : world_of_ranks(), environment_instance<Environment>()) {
    // Reached only if a custom rule rejected the recipe without a compile error.
    if constexpr (std::same_as<recipe, rejected_recipe>) throw broken_rule<recipe_error, rule::D25>();
    require_types_fit<checked_recipe, module_of<Model>, Optimizer>();
    require_custom_policies_fit<recipe>();
    custom_rungs<policy_of<recipe, slot::oom>>::require_callable();
  }

  /// Runs one micro-batch; completes the update if it is the last of accumulate<N>. `loss_of(batch)` returns the mean loss as a scalar
  /// tensor, keel::weighted_loss or keel::losses. A ladder copies the function to retry the update; pass a stateful one by std::ref.
  ///
  /// Throws:
  /// - data_error for an empty batch, or a loss that cannot be trained on;
  /// - error (E23) if the model was left in evaluation mode, and error (E11) if parameter groups changed;
  /// - learning_rate_error (E18) if other code changed a scheduled rate, or a rate is invalid;
  /// - interference_error (E19) if the program changed a gradient or a parameter during an open update, or called optimizer.step();
  /// - nonfinite_error and out_of_memory_error as the recipe configures, one call later if the device decides whether to apply the update.
  ///
  /// An exception discards the update: parameters, optimizer state and buffers are unchanged, unless the optimizer itself threw inside
  /// step(); the message then says so.
  template <class Batch, class LossOf>
  step_outcome operator()(Batch const& batch, LossOf&& loss_of) {
    constexpr bool cuts = oom::has_rung(configured.oom, oom::rung_kind::halve_micro_batch);
    if constexpr (!countable_batch<Batch>) {
      reject_call<rule::U14, Batch>();
    } else if constexpr (cuts && !sliceable_batch<Batch>) {
      reject_call<rule::U15, Batch>();
    } else if constexpr (oom::has_rung(configured.oom, oom::rung_kind::shorten_sequence) && !shortenable_batch<Batch>) {
      reject_call<rule::U34, Batch>();
    } else if constexpr (!loss_function<LossOf, Batch>) {
      reject_call<rule::U16, Batch>();
    } else {
      constexpr bool weighted = std::same_as<std::remove_cvref_t<std::invoke_result_t<LossOf&, Batch const&>>, weighted_loss>;
      require_batch_fits<checked_recipe, Batch, weighted>();
      check([&] {
        context().template require_data_fits<Batch, weighted>();
        require_declared_rows(current_config().accumulate, batch_traits<Batch>::rows(batch));
      });
      return drop_on_exception([&] {
        if constexpr (cuts) require_same_rows(batch);
        typed_micro_batch<Batch const&, LossOf&, keeps_batches> taken(batch, loss_of, granularity_of(batch, granularity()));
        return accumulate(taken);
      });
    }
    return result::accumulated{0, current_config().accumulate.count};
  }

  /// As above for a loss function without a batch.
  template <class LossOf>
    requires std::invocable<std::remove_reference_t<LossOf>&>
  step_outcome operator()(LossOf&& loss_of) {
    // A rerun may follow this call, so keep a copy. A stateful function is only referenced; the caller owns it.
    constexpr bool runs_again = configured.oom.kind == oom::kind::ladder || configured.incident.kind != incident::kind::off;
    using kept = std::conditional_t<runs_again, kept_function<LossOf>, std::remove_reference_t<LossOf>&>;
    return (*this)(no_batch{}, without_batch<kept>{loss_of});
  }

  /// Opens a micro-batch for which the program runs the backward passes: see manual_backward.hpp. Throws error (E12) if another one is
  /// open, or if the optimizer takes a closure. Rejected with a loss scale (U49) and with a ladder (U50).
  [[nodiscard]] manual_backward open(std::int64_t rows = 1, std::int64_t tokens = 0) {
    reject_manual_backward<Recipe, configured>();
    return open_manual_backward(rows, tokens);
  }

  /// Changes .accumulate or .clip from the next update on, if the recipe leaves them open. Checkpoints save the change. A schedule keeps
  /// the length that the run began with. Throws recipe_error: E22 for any other number, or the rules that the numbers break. Throws error
  /// (E12) during an open update.
  void change(numbers const& changes)
    requires(leaves_numbers_open<recipe>)
  {
    change_numbers(changes);
  }

  /// The moving average of the parameters, if the recipe has keel::ema.
  moving_average& average()
    requires(has_average)
  {
    return *average_or_null();
  }
};

}  // namespace keel::detail::inline KEEL_MODE
