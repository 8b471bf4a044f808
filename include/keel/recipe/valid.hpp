// The compile-time doors: `valid` asks, `checked` demands.
#pragma once

#include <keel/recipe/check.hpp>
#include <keel/recipe/config_of.hpp>

namespace keel {

namespace detail {

// The list of broken rules is computed before any of them speaks, so that the compiler's notes name these few and not the
// whole catalogue.
template <class Recipe, class... Broken>
struct refused : Broken::template demand<false, Recipe>... {};

template <class Refused, class Rule, bool Broken>
struct with_rule {
  using type = Refused;
};
template <class Recipe, class... Broken, class Rule>
struct with_rule<refused<Recipe, Broken...>, Rule, true> {
  using type = refused<Recipe, Broken..., Rule>;
};

template <class Refused, class List>
struct judged;
template <class Recipe, class... Broken>
struct judged<refused<Recipe, Broken...>, rule::list<>> {
  using type = refused<Recipe, Broken...>;
};
template <class Recipe, class... Broken, class Rule, class... Rest>
struct judged<refused<Recipe, Broken...>, rule::list<Rule, Rest...>>
    : judged<typename with_rule<refused<Recipe, Broken...>, Rule, Rule::broken(config_of<Recipe>)>::type, rule::list<Rest...>> {
};

template <class Recipe, class Rules = rule::catalogue>
using verdict_of = typename judged<refused<Recipe>, Rules>::type;

template <class Recipe>
constexpr bool is_valid() {
  if constexpr (is_recipe<Recipe>) {
    return check(config_of<Recipe>).ok();
  } else {
    return false;
  }
}

}  // namespace detail

/// True if the recipe breaks no rule that can be decided before the run. Never a hard error.
template <class Recipe>
inline constexpr bool valid = detail::is_valid<Recipe>();

/// The rules that a recipe breaks, as a range of violations.
template <class Recipe>
inline constexpr verdict violations = check(config_of<Recipe>);

/// Demands a valid recipe: `template struct keel::checked<mine>;` fails to compile with one error a broken rule. The
/// trainer does it by itself.
template <class Recipe>
struct checked : detail::verdict_of<Recipe> {};

template <class Recipe>
requires(!detail::is_recipe<Recipe>) struct checked<Recipe> : rule::D21::demand<false, Recipe> {
};

}  // namespace keel
