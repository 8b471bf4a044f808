// Which recipe a step or trainer runs: its own if it can, otherwise the empty one, so that the calls that follow add no errors to
// those of the recipe, which `demanded` says.
#pragma once

#include <keel/recipe/valid.hpp>
#include <keel/rule/not_implemented.hpp>

namespace keel::detail {

/// The empty recipe in the place of one that was rejected; facts of types are not held against it.
struct inert : recipe<> {};

/// A trainer rejects what this version of keel does not implement.
struct at_trainer {
  template <class Recipe>
  using rules = rule::rules_not_implemented;
};

/// A bare step also rejects what only a trainer does.
struct at_step {
  template <class Recipe>
  using rules = typename rule::detail::joined<rule::rules_not_implemented, rule::trainer_only_rules>::type;
};

/// `recipe` is what runs; `demanded` is an error, where it is instantiated, for what `Recipe` breaks.
template <class Recipe, class Door>
struct admission {
  using demanded = verdict_of<Recipe>;
  using recipe = inert;
};

template <class Recipe, class Door>
  requires(is_recipe<Recipe> && is_valid<Recipe>())
struct admission<Recipe, Door> {
  using demanded = verdict_of<Recipe, Door>;
  template <class Missing>
  struct choose {
    using type = inert;
  };
  template <class Same, class SameDoor>
  struct choose<rejected<Same, SameDoor, std::integer_sequence<int>>> {
    using type = Recipe;
  };
  using recipe = typename choose<demanded>::type;
};

template <class Recipe, class Door>
  requires(!is_recipe<Recipe>)
struct admission<Recipe, Door> {
  using demanded = rule::D21::demand<false, Recipe>;
  using recipe = inert;
};

}  // namespace keel::detail
