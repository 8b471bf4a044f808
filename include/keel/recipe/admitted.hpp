// What a step or trainer derives from: the real thing for a recipe that it can run, otherwise the real thing of the empty
// recipe, so that the calls that follow add no errors of their own to those of the recipe, which `demanded` says.
#pragma once

#include <keel/recipe/valid.hpp>
#include <keel/rule/unbuilt.hpp>

namespace keel::detail {

/// The empty recipe in the place of one that was refused; facts of types are not held against it.
struct inert : recipe<> {};

/// By what this version has no mechanism for.
struct at_trainer {
  template <class Recipe>
  using rules = rule::unbuilt_rules;
};

/// `type` is the real one; `demanded` says, where it is instantiated, what the recipe breaks.
template <class Recipe, class Unbuilt, class Box>
struct admission {
  using demanded = verdict_of<Recipe>;
  using type = typename Box::template body<inert>;
};

template <class Recipe, class Unbuilt, class Box>
requires(is_recipe<Recipe>&& is_valid<Recipe>()) struct admission<Recipe, Unbuilt, Box> {
  using demanded = verdict_of<Recipe, Unbuilt>;
  template <class Missing>
  struct choose {
    using type = typename Box::template body<inert>;
  };
  template <class Same, class Door>
  struct choose<refused<Same, Door, std::integer_sequence<int>>> {
    using type = typename Box::template body<Recipe>;
  };
  using type = typename choose<demanded>::type;
};

template <class Recipe, class Unbuilt, class Box>
requires(!is_recipe<Recipe>) struct admission<Recipe, Unbuilt, Box> {
  using demanded = rule::D21::demand<false, Recipe>;
  using type = typename Box::template body<inert>;
};

}  // namespace keel::detail
