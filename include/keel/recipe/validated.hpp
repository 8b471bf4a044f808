// Selects the recipe that a step or trainer runs: the given one if it is valid, otherwise an empty one, so that later calls add no errors
// to those of the recipe, which `diagnostics` reports.
#pragma once

#include <keel/recipe/valid.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>

namespace keel::detail {

/// The empty recipe that replaces a rejected one. Facts of types do not break its rules.
struct rejected_recipe : recipe<> {};

/// Rejects a call with `Rule`, unless the recipe was rejected already. `Taken`: the recipe in use.
template <class Rule, class Recipe, class Taken>
constexpr void reject_call_of() {
  if constexpr (!std::is_same_v<Taken, rejected_recipe>) reject_call<Rule, Recipe>();
}

/// The entry point of a trainer. Rejects policies that this version of keel does not implement.
struct trainer_entry {
  template <class Recipe>
  using rules = rule::rules_not_implemented;
};

/// The entry point of a bare step. Also rejects policies that only a trainer implements.
struct step_entry {
  template <class Recipe>
  using rules = typename rule::detail::joined<rule::rules_not_implemented, rule::trainer_only_rules>::type;
};

/// The entry point of a part, one of several models in a run.
struct part_entry {
  template <class Recipe>
  using rules = typename rule::detail::joined<rule::rules_not_implemented, rule::run_only_rules>::type;
};
struct run_entry {
  template <class Recipe>
  using rules = typename rule::detail::joined<rule::rules_not_implemented, rule::part_only_rules>::type;
};

/// A part's recipe with the settings of its run, which has the checkpoints and evaluations. A run that is not known yet is assumed to have
/// both.
template <class Recipe, class Run>
struct recipe_within_run : Recipe {};

constexpr config merge_run_config(config value, config const& run) {
  value.checkpoint = run.checkpoint;
  value.evaluation = run.evaluation;
  value.determinism = run.determinism;
  value.timeout = run.timeout;
  value.run.is_part = true;
  return value;
}
constexpr config any_run() {
  config value;
  // Assumes a checkpoint for rollbacks; N12 is checked again with that of the actual run.
  value.checkpoint = {.kind = checkpoint::kind::every_steps, .interval = 1000, .keep = 1'000'000'000};
  value.evaluation = {.kind = evaluation::kind::every, .interval = 1000};
  return value;
}
template <class Run>
constexpr config run_config() {
  if constexpr (std::is_void_v<Run>) {
    return any_run();
  } else {
    return config_of<Run>;
  }
}

/// The recipe that an entry point checks.
template <class Recipe, class EntryPoint>
struct recipe_for_entry {
  using type = Recipe;
};
template <class Recipe>
  requires(is_recipe<Recipe>)
struct recipe_for_entry<Recipe, part_entry> {
  using type = recipe_within_run<Recipe, void>;
};

/// The recipe of a run, whose parts have further policies in their recipes.
template <class Recipe>
struct recipe_of_run : Recipe {};
constexpr config with_parts(config value) {
  value.run.has_parts = true;
  return value;
}
template <class Recipe>
  requires(is_recipe<Recipe>)
struct recipe_for_entry<Recipe, run_entry> {
  using type = recipe_of_run<Recipe>;
};

/// `recipe` is the recipe to run; instantiating `diagnostics` reports the rules that `Recipe` breaks.
template <class Recipe, class EntryPoint>
struct validated {
  using diagnostics = verdict_of<typename recipe_for_entry<Recipe, EntryPoint>::type>;
  using recipe = rejected_recipe;
};

template <class Recipe, class EntryPoint>
  requires(is_recipe<Recipe> && is_valid<typename recipe_for_entry<Recipe, EntryPoint>::type>())
struct validated<Recipe, EntryPoint> {
  using diagnostics = verdict_of<Recipe, EntryPoint>;
  template <class Missing>
  struct choose {
    using type = rejected_recipe;
  };
  template <class Same, class SameEntryPoint>
  struct choose<rejected<Same, SameEntryPoint, std::integer_sequence<int>>> {
    using type = Recipe;
  };
  using recipe = typename choose<diagnostics>::type;
};

template <class Recipe, class EntryPoint>
  requires(!is_recipe<Recipe>)
struct validated<Recipe, EntryPoint> {
  using diagnostics = rule::D21::demand<false, Recipe>;
  using recipe = rejected_recipe;
};

}  // namespace keel::detail

namespace keel {
template <class Recipe, class Run>
inline constexpr config config_of<detail::recipe_within_run<Recipe, Run>> =
    detail::merge_run_config(config_of<Recipe>, detail::run_config<Run>());
template <class Recipe>
inline constexpr config config_of<detail::recipe_of_run<Recipe>> = detail::with_parts(config_of<Recipe>);
}  // namespace keel
