// What a step or trainer derives from: the real thing for a recipe that it can run, otherwise every reason once, and the real
// thing of the empty recipe, so that the calls that follow add no errors of their own.
#pragma once

#include <keel/recipe/valid.hpp>
#include <keel/rule/unbuilt.hpp>

namespace keel::detail {

/// The empty recipe in the place of one that was refused; facts of types are not held against it.
struct inert : recipe<> {};

/// Chosen where the recipe is refused: the errors of `Verdict`, and nothing else.
template <class Verdict, class Empty>
struct refusal : Verdict, Empty {
  using Empty::Empty;
};

template <class Recipe, class Unbuilt, class Box>
struct admission {
  using type = refusal<verdict_of<Recipe>, typename Box::template body<inert>>;
};

template <class Recipe, class Unbuilt, class Box>
requires(is_recipe<Recipe>&& is_valid<Recipe>()) struct admission<Recipe, Unbuilt, Box> {
  template <class Missing>
  struct choose {
    using type = refusal<Missing, typename Box::template body<inert>>;
  };
  template <class Same>
  struct choose<refused<Same>> {
    using type = typename Box::template body<Recipe>;
  };
  using type = typename choose<verdict_of<Recipe, Unbuilt>>::type;
};

template <class Recipe, class Unbuilt, class Box>
requires(!is_recipe<Recipe>) struct admission<Recipe, Unbuilt, Box> {
  using type = refusal<refused<Recipe, rule::D21>, typename Box::template body<inert>>;
};

/// `Box::body<R>` names the real type for a recipe; only one of them is instantiated.
template <class Recipe, class Unbuilt, class Box>
using admitted = typename admission<Recipe, Unbuilt, Box>::type;

}  // namespace keel::detail
