// Checks the rules when a step is constructed: at compile time with the facts of the model and optimizer types, and at run time with the
// facts known then. The predicates are those that check a recipe alone.
#pragma once

#include <concepts>
#include <keel/config/describe.hpp>
#include <keel/core/batch.hpp>
#include <keel/core/error.hpp>
#include <keel/policy/facts.hpp>
#include <keel/recipe/validated.hpp>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// A recipe with the facts of the types that it is used with; checked like a recipe.
template <class Recipe, class Model, class Optimizer>
struct recipe_with_types {};
template <class Recipe, class Batch, bool Weighted>
struct recipe_with_batch {};

/// The rules that check the facts of types.
template <class Recipe>
struct with_types_of {
  template <class>
  using rules = typename rule::detail::joined<all_rules<Recipe>, rule::rules_not_implemented>::type;
};
template <class Recipe>
struct with_batches_of {
  template <class>
  using rules = rules_about<Recipe>;
};

template <class Recipe, class Model, class Optimizer>
constexpr config with_types(config value) {
  value.model = value.model | facts<slot::model, Model>();
  value.optimizer = value.optimizer | facts<slot::optimizer, Optimizer>();
  return value;
}
template <class Recipe, class Batch, bool Weighted>
constexpr config with_batch(config value) {
  value.data = value.data | batch_facts<Batch>();
  value.data.token_weighted = Weighted;
  // Assumed here, because the model's type may declare it; the step checks again at run time.
  value.model.sequence_boundaries = true;
  return value;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel {

template <class Recipe, class Model, class Optimizer>
inline constexpr config config_of<detail::recipe_with_types<Recipe, Model, Optimizer>> =
    detail::with_types<Recipe, Model, Optimizer>(config_of<Recipe>);
template <class Recipe, class Batch, bool Weighted>
inline constexpr config config_of<detail::recipe_with_batch<Recipe, Batch, Weighted>> =
    detail::with_batch<Recipe, Batch, Weighted>(config_of<Recipe>);

}  // namespace keel

namespace keel::inline KEEL_MODE {

/// Compile error if the types of model and optimizer break a rule that the recipe alone satisfies.
template <class Recipe, class Model, class Optimizer>
constexpr void require_types_fit() {
  if constexpr (!std::same_as<Recipe, detail::rejected_recipe>) {
    [[maybe_unused]] detail::verdict_of<detail::recipe_with_types<Recipe, Model, Optimizer>, detail::with_types_of<Recipe>>
        check;
  }
}

/// Compile error if the batch's type, or a weighted or unweighted loss, breaks a rule that the recipe alone satisfies. An accepted
/// rule that this call satisfies is not an error, because another call may break it.
template <class Recipe, class Batch, bool Weighted>
constexpr void require_batch_fits() {
  [[maybe_unused]] detail::verdict_of<detail::recipe_with_batch<Recipe, Batch, Weighted>, detail::with_batches_of<Recipe>>
      check;
}

/// Throws recipe_error with the first broken rule's id and the sentences of all broken rules, one per line.
template <class Rules>
void require_valid(config const& value) {
  verdict const result = detail::verdict_on_whole<Rules>(value);
  if (result.ok()) return;
  std::string sentences;
  std::vector<std::string> ids;
  for (violation const& one : result) {
    std::string sentence = describe(one).c_str();
    // The exception's own prefix is the first rule's id.
    if (ids.empty() && sentence.starts_with("[")) sentence.erase(0, sentence.find(' ') + 1);
    sentences += (ids.empty() ? "" : "\n") + sentence;
    ids.emplace_back(one.id);
  }
  throw recipe_error(ids.front(), sentences, ids);
}

#ifdef KEEL_COMPILED
// For recipes without custom rules.
extern template void require_valid<detail::rules_about<recipe<>>>(config const&);
extern template void require_valid<detail::with_types_of<recipe<>>::rules<void>>(config const&);
#endif

}  // namespace keel::inline KEEL_MODE
