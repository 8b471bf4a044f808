// The compile-time doors: `valid` asks, `checked` demands.
#pragma once

#include <keel/recipe/check.hpp>
#include <keel/recipe/config_of.hpp>
#include <utility>

namespace keel {

namespace detail {

template <class... Entries, int... Place>
constexpr auto own_rules(std::integer_sequence<int, Place...>) {
  return typename rule::detail::joined<
      std::conditional_t<is_first_own<Entries, Entries...>(Place), rule::list<Entries>, rule::list<>>...>::type{};
}

/// The rules that stand in a recipe itself.
template <class... Entries>
constexpr auto own_rules_of(recipe<Entries...> const*) {
  if constexpr ((is_own_rule<Entries>() || ...)) {
    return own_rules<Entries...>(std::make_integer_sequence<int, sizeof...(Entries)>{});
  } else {
    return rule::list<>{};
  }
}
template <class Recipe>
using own_rules_in = decltype(own_rules_of(decltype(list_of(static_cast<Recipe const*>(nullptr))){}));

/// What a recipe is judged by, apart from keel::accept: keel's rules and its own.
template <class Recipe>
using rules_about = typename rule::detail::joined<rule::catalogue, own_rules_in<Recipe>>::type;
template <class Recipe>
using all_rules = typename rule::detail::joined<rule::catalogue, own_rules_in<Recipe>, rule::accept_rules>::type;

// By the list alone and not by the recipe, so that a further recipe instantiates nothing here.
template <class List>
constexpr int count_broken(config const& value) {
  int count = 0;
  judge<List>(value, [&](int, origin, int) { ++count; });
  return count;
}

struct finding {
  int rule = 0;
  origin from = origin::recipe;
  int number = 0;
};

template <int Count>
struct findings {
  finding all[Count];
};

template <class Recipe, class List, int Count>
constexpr findings<Count> find_broken() {
  findings<Count> found{};
  int next = 0;
  judge<List>(config_of<Recipe>, [&](int rule, origin from, int number) { found.all[next++] = {rule, from, number}; });
  return found;
}

// One class with all rules as bases: overload resolution finds the one of an index without a chain of instantiations.
template <int Index, class Rule>
struct indexed {};
template <class Indices, class List>
struct indexed_rules;
template <int... Index, class... Rules>
struct indexed_rules<std::integer_sequence<int, Index...>, rule::list<Rules...>> : indexed<Index, Rules>... {};
template <int Index, class Rule>
box<Rule> rule_at(indexed<Index, Rule>);

/// Names the rule whose words a sentence stands for.
template <class Recipe, class Rule>
struct on_behalf_of;

template <class Recipe, class Rule, origin From, int Number>
constexpr auto demand_of() {
  if constexpr (From == origin::recipe) {
    return box<typename Rule::template demand<false, Recipe>>{};
  } else if constexpr (!rule_of_keel<Rule>) {
    return box<rule::O09::demand<false, on_behalf_of<Recipe, Rule>>>{};
  } else if constexpr (From == origin::rung) {
    return box<typename Rule::template reached_by_rung<false, Recipe, Number>>{};
  } else if constexpr (From == origin::rollback) {
    return box<typename Rule::template reached_by_rollback<false, Recipe>>{};
  } else {
    return box<typename Rule::template reached_by_floor<false, Recipe>>{};
  }
}

/// The errors of a recipe: one base class a broken rule, whose static_assert speaks.
template <class Recipe, class... Demands>
struct refused : Demands... {};

// Which rules are broken is known before any of them speaks, so that a recipe without one costs a single evaluation and the
// compiler's notes name these few rules and not the whole catalogue.
template <class Recipe, class List, int... Index>
constexpr auto refuse(std::integer_sequence<int, Index...>) {
  constexpr auto found = find_broken<Recipe, List, sizeof...(Index)>();
  using rules = indexed_rules<std::make_integer_sequence<int, rule_table<List>::count>, List>;
  return box<
      refused<Recipe, typename decltype(demand_of<Recipe, typename decltype(rule_at<found.all[Index].rule>(rules{}))::type,
                                                  found.all[Index].from, found.all[Index].number>())::type...>>{};
}

template <class Recipe, class List>
constexpr auto judge_recipe() {
  constexpr int count = count_broken<List>(config_of<Recipe>);
  if constexpr (count == 0) {
    return box<refused<Recipe>>{};
  } else {
    return refuse<Recipe, List>(std::make_integer_sequence<int, count>{});
  }
}

template <class Recipe, class List = all_rules<Recipe>>
using verdict_of = typename decltype(judge_recipe<Recipe, List>())::type;

template <class Recipe>
constexpr bool is_valid() {
  if constexpr (is_recipe<Recipe>) {
    return count_broken<all_rules<Recipe>>(config_of<Recipe>) == 0;
  } else {
    return false;
  }
}

}  // namespace detail

/// True if the recipe breaks no rule that can be decided before the run. Never a hard error.
template <class Recipe>
inline constexpr bool valid = detail::is_valid<Recipe>();

/// Judges a configuration of this recipe, such as config_of<Recipe> with facts filled in, by keel's rules and the recipe's own.
template <class Recipe>
constexpr verdict check_as(config const& value) {
  return detail::verdict_on<detail::all_rules<Recipe>>(value);
}

/// The rules that a recipe breaks, as a range of violations.
template <class Recipe>
inline constexpr verdict violations = check_as<Recipe>(config_of<Recipe>);

/// Demands a valid recipe: `template struct keel::checked<mine>;` fails to compile with one error a broken rule. The
/// trainer does it by itself.
template <class Recipe>
struct checked : detail::verdict_of<Recipe> {};

template <class Recipe>
requires(!detail::is_recipe<Recipe>) struct checked<Recipe> : rule::D21::demand<false, Recipe> {
};

}  // namespace keel
