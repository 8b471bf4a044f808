// Determines which type of a recipe broke a rule, for the few rules whose text cannot name it. The compiler's notes contain it.
#pragma once

#include <keel/recipe/config_of.hpp>

namespace keel {

/// Appears in the compiler's notes: the type that broke the rule, and the recipe.
template <class Type, class Recipe>
struct because_of;

namespace detail {

template <class... Types>
struct types {};

/// The type at an index of a list; void if the index is out of range.
template <int Place, class... Types>
constexpr auto type_at(types<Types...>) {
  if constexpr (Place < 0 || Place >= static_cast<int>(sizeof...(Types))) {
    return box<void>{};
  } else {
    return []<class First, class... Rest>(types<First, Rest...>) {
      if constexpr (Place == 0) {
        return box<First>{};
      } else {
        return type_at<Place - 1>(types<Rest...>{});
      }
    }(types<Types...>{});
  }
}

constexpr int first_true(bool const* all, int count) {
  for (int i = 0; i < count; ++i) {
    if (all[i]) return i;
  }
  return -1;
}

template <class Rule, class... Entries>
constexpr int place_of_culprit(recipe<Entries...> const*) {
  constexpr int count = sizeof...(Entries);
  auto const first = [](auto... all) {
    bool const marks[] = {static_cast<bool>(all)..., false};
    return first_true(marks, count);
  };
  if constexpr (std::is_same_v<Rule, rule::D00>) return first(faults_of<Entries>().is_unknown...);
  if constexpr (std::is_same_v<Rule, rule::D20>) return first(faults_of<Entries>().options_disagree...);
  if constexpr (std::is_same_v<Rule, rule::D25>) return first(faults_of<Entries>().is_malformed_rule...);
  if constexpr (std::is_same_v<Rule, rule::D26>) return first(faults_of<Entries>().lacks_unit...);
  if constexpr (std::is_same_v<Rule, rule::S05>) return first(faults_of<Entries>().state_is_unsaved...);
  return -1;
}

template <class... Entries>
types<Entries...> entries_of(recipe<Entries...> const*);
template <class... Entries>
types<Entries...> entries_of(oom::ladder<Entries...> const*);
types<> entries_of(void const*);

/// Returns the index of rung number `number`, from 0, among a ladder's entries.
template <class... Entries>
constexpr int place_of_rung(types<Entries...>, int number) {
  bool const is_rung[] = {(oom::rung<Entries> && !oom::is_misfit<Entries>())..., false};
  for (int i = 0; i < static_cast<int>(sizeof...(Entries)); ++i) {
    if (is_rung[i] && number-- == 0) return i;
  }
  return -1;
}
template <class... Entries>
constexpr int place_of_misfit(types<Entries...>) {
  bool const marks[] = {oom::is_misfit<Entries>()..., false};
  return first_true(marks, sizeof...(Entries));
}

/// Returns a box of the type that broke the rule, or of void.
template <class Rule, class Recipe>
constexpr auto culprit() {
  using list = decltype(list_of(static_cast<Recipe const*>(nullptr)));
  if constexpr (std::is_same_v<Rule, rule::P20>) {
    constexpr int which = rule::slot_with_unread_option(config_of<Recipe>);
    if constexpr (which < 0) {
      return box<void>{};
    } else {
      return box<policy_of<Recipe, slot_with_index<which>>>{};
    }
  } else if constexpr (std::is_same_v<Rule, rule::O08> || std::is_same_v<Rule, rule::O23>) {
    using ladder = policy_of<Recipe, slot::oom>;
    using rungs = decltype(entries_of(static_cast<ladder const*>(nullptr)));
    if constexpr (std::is_same_v<Rule, rule::O08>) {
      return type_at<place_of_rung(rungs{}, rule::dead_rung(config_of<Recipe>))>(rungs{});
    } else {
      return type_at<place_of_misfit(rungs{})>(rungs{});
    }
  } else {
    return type_at<place_of_culprit<Rule>(list{})>(decltype(entries_of(list{})){});
  }
}

template <class Rule>
inline constexpr bool means_a_type =
    std::is_same_v<Rule, rule::D00> || std::is_same_v<Rule, rule::D20> || std::is_same_v<Rule, rule::D25> ||
    std::is_same_v<Rule, rule::D26> || std::is_same_v<Rule, rule::S05> || std::is_same_v<Rule, rule::P20> ||
    std::is_same_v<Rule, rule::O08> || std::is_same_v<Rule, rule::O23>;

/// The type that a demand names: the recipe, with the type that broke the rule if there is one.
template <class Recipe, class Type>
struct named_with {
  using type = because_of<Type, Recipe>;
};
template <class Recipe>
struct named_with<Recipe, void> {
  using type = Recipe;
};
template <class Rule, class Recipe>
constexpr auto named_by() {
  if constexpr (means_a_type<Rule> && is_recipe<Recipe>) {
    return named_with<Recipe, typename decltype(culprit<Rule, Recipe>())::type>{};
  } else {
    return named_with<Recipe, void>{};
  }
}

}  // namespace detail
}  // namespace keel
