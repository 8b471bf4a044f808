// One guarded update, for programs that own their loop:
//
//     keel::step<recipe> step{model, optimizer};
//     for (auto const& batch : batches) keel::outcome outcome = step(batch, loss_of);
//
// With accumulate<N> every Nth call updates. The order of the phases is fixed by the types of gradients.hpp; what each
// phase does is the recipe's. Its members are those of step_body.
#pragma once

#include <keel/recipe/admitted.hpp>
#include <keel/step/environment.hpp>
#include <keel/step/step_body.hpp>

namespace keel {

namespace detail {

template <class Environment>
struct step_box {
  template <class Recipe>
  using body = step_body<Recipe, Environment>;
};

/// By what this version has no mechanism for, and by what only a trainer does.
struct at_step {
  template <class Recipe>
  using rules = typename rule::detail::joined<rule::unbuilt_rules, rule::trainer_only_rules>::type;
};

}  // namespace detail

/// The guarded update of a recipe; see step_body's members. A refused recipe is a compile error, one a broken rule.
template <class Recipe, class Environment = step_environment>
class step : public detail::admission<Recipe, detail::at_step, detail::step_box<Environment>>::type {
  using admission = detail::admission<Recipe, detail::at_step, detail::step_box<Environment>>;
  using base = typename admission::type;
  static_assert(sizeof(typename admission::demanded) > 0);

 public:
  using base::base;
};

}  // namespace keel
