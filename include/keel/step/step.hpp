// keel::step, the guarded update for programs that own their loop:
//
//     keel::step<recipe> step{model, optimizer};
//     for (auto const& batch : batches) keel::step_outcome outcome = step(batch, loss_of);
//
// With keel::shard::replicate, construct one step on every rank: keel::step<recipe> step{model, optimizer, keel::join()};
//
// With accumulate<N>, every Nth call applies an update. The types of gradients.hpp fix the order of the phases; the recipe defines
// each phase.
#pragma once

#include <concepts>
#include <cstdint>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/numbers.hpp>
#include <keel/step/checked_world.hpp>
#include <keel/step/typed_step.hpp>

namespace keel::inline KEEL_MODE {

/// Applies guarded updates as a recipe configures them. A recipe that breaks rules does not compile; each broken rule is one error. The
/// member functions are those of detail::typed_step and detail::step_engine. Collective: with several ranks, each constructs one step, and
/// all ranks make the same calls in the same order.
template <class Recipe, class Environment = step_environment>
class step final : public detail::typed_step<Recipe, Environment, detail::step_entry> {
  using base = detail::typed_step<Recipe, Environment, detail::step_entry>;
  using recipe = typename base::recipe;
  static constexpr bool has_open_numbers = detail::leaves_numbers_open<recipe>;

 public:
  /// Type of the constructor argument after the model and the optimizer: the length of the run.
  using options_type = std::int64_t;

  /// `updates`: the run's length in updates, for schedules that need it; 0: unknown. Model, optimizer and observer must outlive the step.
  /// Throws recipe_error if the recipe breaks a rule that only construction can check.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, std::int64_t updates = 0, step_observer& observer = no_observer())
    requires(!has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>), updates, observer, {}) {
    detail::require_world<Recipe, base::is_distributed>();
  }
  /// For a recipe that leaves numbers open (keel::given); `all` supplies them. Throws recipe_error: E22, which names missing and invalid
  /// numbers, or the rules that the numbers break.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, numbers const& all, std::int64_t updates = 0,
       step_observer& observer = no_observer())
    requires(has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), updates, observer, {}) {
    detail::require_world<Recipe, base::is_distributed>();
  }
  /// For a recipe that replicates. Collective on `world`: broadcasts parameters and buffers from rank 0. Throws world_error (E24), which
  /// names the first difference, if the ranks have different configurations.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  step(Model& model, Optimizer& optimizer, World const& world, std::int64_t updates = 0,
       step_observer& observer = no_observer())
    requires(!has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>), updates, observer,
             detail::checked_world<Recipe, base::accepts_world>(world)) {}
  /// As above for a recipe that leaves numbers open.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  step(Model& model, Optimizer& optimizer, World const& world, numbers const& all, std::int64_t updates = 0,
       step_observer& observer = no_observer())
    requires(has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), updates, observer,
             detail::checked_world<Recipe, base::accepts_world>(world)) {}
  /// Rejected (Z08): a step guards one optimizer.
  template <class Model, std::derived_from<torch::optim::Optimizer> First, std::derived_from<torch::optim::Optimizer> Second>
  step(Model& model, First& first, Second&, std::int64_t = 0) : step(model, first) {
    detail::reject_call<rule::Z08, First, Second>();
  }
  /// Rejected (U47): the numbers are missing.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, std::int64_t updates = 0)
    requires(has_open_numbers)
      : step(model, optimizer, numbers{}, updates) {
    detail::reject_call<rule::U47, Recipe>();
  }
  /// Rejected (U48): the recipe leaves no numbers open.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, numbers const&, std::int64_t updates = 0)
    requires(!has_open_numbers)
      : step(model, optimizer, updates) {
    detail::reject_call_of<rule::U48, Recipe, recipe>();
  }
  step(step const&) = delete;  // functions that rerun an update refer to this object
  /// Rejected (U51): a step cannot be moved. If it is a data member, the error appears where the enclosing class is moved.
  step(step&& other) noexcept : base(other.model(), other.optimizer(), other.recipe_numbers(), 0, no_observer(), {}) {
    detail::reject_call<rule::U51, Recipe>();
  }
  step& operator=(step const&) = delete;
};

}  // namespace keel::inline KEEL_MODE
