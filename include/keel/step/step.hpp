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

#include <concepts>
#include <cstdint>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/numbers.hpp>
#include <keel/step/checked_world.hpp>
#include <keel/step/typed_step.hpp>

namespace keel::inline KEEL_MODE {

/// The guarded update of a recipe. A recipe that breaks a rule is a compile error, one a rule. The calls are those of detail::typed_step
/// and detail::step_engine. Of several ranks each has one, and all make the same calls in the same order.
template <class Recipe, class Environment = step_environment>
class step final : public detail::typed_step<Recipe, Environment, detail::step_entry> {
  using base = detail::typed_step<Recipe, Environment, detail::step_entry>;
  using recipe = typename base::recipe;
  static constexpr bool has_open_numbers = detail::leaves_numbers_open<recipe>;

 public:
  /// What follows model and optimizer: the length of the run.
  using options_type = std::int64_t;

  /// `updates`: the length of the run for schedules that need one; 0: not known. Model and optimizer must outlive the step.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, std::int64_t updates = 0, step_observer& observer = no_observer())
    requires(!has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>), updates, observer, {}) {
    detail::require_world<Recipe, base::replicates>();
  }
  /// For a recipe that leaves numbers open. Throws recipe_error: E22 that names the numbers which are missing or not of their kind,
  /// and with the rules that they break.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, numbers const& all, std::int64_t updates = 0,
       step_observer& observer = no_observer())
    requires(has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), updates, observer, {}) {
    detail::require_world<Recipe, base::replicates>();
  }
  /// Of a recipe that replicates, on all ranks of `world`: rank 0's parameters and buffers are everyone's from here on. Throws world_error
  /// (E24) for ranks that do not train the same, and names the first difference.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  step(Model& model, Optimizer& optimizer, World const& world, std::int64_t updates = 0,
       step_observer& observer = no_observer())
    requires(!has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>), updates, observer,
             detail::checked_world<Recipe, base::accepts_world>(world)) {}
  /// The same for a recipe that leaves numbers open.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer, std::same_as<world_of_ranks> World>
  step(Model& model, Optimizer& optimizer, World const& world, numbers const& all, std::int64_t updates = 0,
       step_observer& observer = no_observer())
    requires(has_open_numbers)
      : base(model, optimizer, detail::recipe_numbers(config_of<recipe>, all), updates, observer,
             detail::checked_world<Recipe, base::accepts_world>(world)) {}
  /// Rejected (Z08): which of the two would be guarded?
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
  /// Rejected (U48): numbers that the recipe has no place for.
  template <class Model, std::derived_from<torch::optim::Optimizer> Optimizer>
  step(Model& model, Optimizer& optimizer, numbers const&, std::int64_t updates = 0)
    requires(!has_open_numbers)
      : step(model, optimizer, updates) {
    detail::reject_call_of<rule::U48, Recipe, recipe>();
  }
  step(step const&) = delete;  // the update may be run again by functions that know this object
  /// Rejected (U51) where it is called, which for a member is where its class is moved.
  step(step&& other) noexcept : base(other.model(), other.optimizer(), other.recipe_numbers(), 0, no_observer(), {}) {
    detail::reject_call<rule::U51, Recipe>();
  }
  step& operator=(step const&) = delete;
};

}  // namespace keel::inline KEEL_MODE
