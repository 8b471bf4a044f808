// Which recipe a step or trainer runs: its own if it can, otherwise the empty one, so that the calls that follow add no errors to
// those of the recipe, which `demanded` says.
#pragma once

#include <keel/recipe/valid.hpp>
#include <keel/rule/not_implemented.hpp>

namespace keel::detail {

/// The empty recipe in the place of one that was rejected; facts of types are not held against it.
struct inert : recipe<> {};

/// Rejected (`Rule`), unless the recipe was, whose own error is enough. `Taken`: what stands for it.
template <class Rule, class Recipe, class Taken>
constexpr void reject_call_of() {
  if constexpr (!std::is_same_v<Taken, inert>) reject_call<Rule, Recipe>();
}

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

/// One of several models in a run, and the run itself.
struct at_part {
  template <class Recipe>
  using rules = typename rule::detail::joined<rule::rules_not_implemented, rule::run_only_rules>::type;
};
struct at_run {
  template <class Recipe>
  using rules = typename rule::detail::joined<rule::rules_not_implemented, rule::part_only_rules>::type;
};

/// A part's recipe together with that of its run, which has the checkpoints and evaluations; of a run that is not known yet, which may
/// have both.
template <class Recipe, class Run>
struct in_a_run : Recipe {};

constexpr config joined_with_run(config value, config const& run) {
  value.checkpoint = run.checkpoint;
  value.evaluation = run.evaluation;
  value.determinism = run.determinism;
  value.timeout = run.timeout;
  value.run.is_part = true;
  return value;
}
constexpr config any_run() {
  config value;
  // A rollback finds its checkpoint in some run; N12 is asked again with the one that it gets.
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

/// What is judged at a door.
template <class Recipe, class Door>
struct judged_at {
  using type = Recipe;
};
template <class Recipe>
  requires(is_recipe<Recipe>)
struct judged_at<Recipe, at_part> {
  using type = in_a_run<Recipe, void>;
};

/// `recipe` is what runs; `demanded` is an error, where it is instantiated, for what `Recipe` breaks.
template <class Recipe, class Door>
struct admission {
  using demanded = verdict_of<typename judged_at<Recipe, Door>::type>;
  using recipe = inert;
};

template <class Recipe, class Door>
  requires(is_recipe<Recipe> && is_valid<typename judged_at<Recipe, Door>::type>())
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

namespace keel {
template <class Recipe, class Run>
inline constexpr config config_of<detail::in_a_run<Recipe, Run>> =
    detail::joined_with_run(config_of<Recipe>, detail::run_config<Run>());
}  // namespace keel
