// What a step or trainer derives from: the real thing for a recipe that it can run, otherwise an inert stand-in that shows
// every reason once and accepts every call, so that nothing cascades after the reasons.
#pragma once

#include <keel/recipe/valid.hpp>
#include <keel/rule/unbuilt.hpp>

namespace keel::detail {

/// Converts to anything and has every member that a trainer has.
struct inert {
  template <class... Arguments>
  explicit constexpr inert(Arguments&&...) {}
  template <class... Arguments>
  inert operator()(Arguments&&...) {
    return inert{};
  }
  template <class... Arguments>
  inert fit(Arguments&&...) {
    return inert{};
  }
  template <class... Arguments>
  inert step(Arguments&&...) {
    return inert{};
  }
  template <class... Arguments>
  inert flush(Arguments&&...) {
    return inert{};
  }
  template <class... Arguments>
  inert on(Arguments&&...) {
    return inert{};
  }
  template <class... Arguments>
  double evaluate(Arguments&&...) {
    return 0.0;
  }
  template <class... Arguments>
  void request_stop(Arguments&&...) {}
  long long updates() const { return 0; }
  long long skipped() const { return 0; }
  template <class Type>
  operator Type() const;
};

/// Chosen where the recipe is refused: the errors of `Verdict`, and nothing else.
template <class Verdict>
struct refusal : Verdict, inert {
  using inert::inert;
};

template <class Recipe, class Unbuilt, class Real>
struct admission {
  using verdict = verdict_of<Recipe>;
  using type = refusal<verdict>;
};

template <class Recipe, class Unbuilt, class Real>
requires(is_recipe<Recipe>&& is_valid<Recipe>()) struct admission<Recipe, Unbuilt, Real> {
  using missing = verdict_of<Recipe, Unbuilt>;
  template <class Missing>
  struct choose {
    using type = refusal<Missing>;
  };
  template <class Same>
  struct choose<refused<Same>> {
    using type = typename Real::type;
  };
  using type = typename choose<missing>::type;
};

template <class Recipe, class Unbuilt, class Real>
requires(!is_recipe<Recipe>) struct admission<Recipe, Unbuilt, Real> {
  using type = refusal<refused<Recipe, rule::D21>>;
};

/// `Real` is a box with the real type inside, so that it is only instantiated for a recipe that it can run.
template <class Recipe, class Unbuilt, class Real>
using admitted = typename admission<Recipe, Unbuilt, Real>::type;

}  // namespace keel::detail
