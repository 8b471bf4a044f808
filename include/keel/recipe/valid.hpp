// The compile-time doors: `valid` asks, `checked` demands.
#pragma once

#include <keel/policy/text.hpp>
#include <keel/recipe/check.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/recipe/culprit.hpp>
#include <keel/rule/demand.hpp>
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

// By the list alone and not by the recipe, so that a further recipe instantiates nothing here. A recipe without open numbers does
// not pay for those that have some.
template <class List, bool IsOpen>
constexpr int count_broken(config const& value) {
  int count = 0;
  auto const add = [&](int, origin, int) { ++count; };
  if constexpr (IsOpen) {
    judge_open<List>(value, add);
  } else {
    judge_whole<List>(value, add);
  }
  return count;
}

struct finding {
  int rule = 0;
  origin from = origin::recipe;
  int number = 0;
};

template <int Count>
struct findings {
  static constexpr int count = Count;
  finding all[Count + 1];
};

template <class List, bool IsOpen, int Count>
constexpr findings<Count> find_broken(config const& value) {
  findings<Count> found{};
  int next = 0;
  auto const add = [&](int rule, origin from, int number) { found.all[next++] = {rule, from, number}; };
  if constexpr (IsOpen) {
    judge_open<List>(value, add);
  } else {
    judge_whole<List>(value, add);
  }
  return found;
}

// What a recipe is judged by at each door. A type with a name, so that no note of the compiler lists the rules.
struct at_recipe {
  template <class Recipe>
  using rules = all_rules<Recipe>;
};

template <class Recipe, class EntryPoint>
inline constexpr auto broken_at =
    find_broken<typename EntryPoint::template rules<Recipe>, (config_of<Recipe>.given > 0),
                count_broken<typename EntryPoint::template rules<Recipe>, (config_of<Recipe>.given > 0)>(config_of<Recipe>)>(
        config_of<Recipe>);

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
    return box<rule::demand<Rule, false, typename decltype(named_by<Rule, Recipe>())::type>>{};
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

/// The rule that is broken there, by its place among those that are.
template <class Recipe, class EntryPoint, int Broken>
constexpr auto rule_broken_at() {
  using list = typename EntryPoint::template rules<Recipe>;
  using rules = indexed_rules<std::make_integer_sequence<int, rule_table<list>::count>, list>;
  return decltype(rule_at<broken_at<Recipe, EntryPoint>.all[Broken].rule>(rules{})){};
}
/// The class whose static_assert says so.
template <class Recipe, class EntryPoint, int Broken>
using demand_at = typename decltype(demand_of<Recipe, typename decltype(rule_broken_at<Recipe, EntryPoint, Broken>())::type,
                                              broken_at<Recipe, EntryPoint>.all[Broken].from,
                                              broken_at<Recipe, EntryPoint>.all[Broken].number>())::type;

/// Of each broken rule its place among them. Which are broken is known before any of them speaks, so that a recipe without one
/// costs a single evaluation and the compiler's notes name these few rules and not the whole catalogue.
template <class Recipe, class EntryPoint>
using all_broken = std::make_integer_sequence<int, broken_at<Recipe, EntryPoint>.count>;

/// The name of the type that a broken rule means, or none.
template <class Recipe, class EntryPoint, int Broken>
constexpr short_name culprit_of() {
  using rule = typename decltype(rule_broken_at<Recipe, EntryPoint, Broken>())::type;
  if constexpr (means_a_type<rule> && is_recipe<Recipe> && broken_at<Recipe, EntryPoint>.all[Broken].from == origin::recipe) {
    using type = typename decltype(culprit<rule, Recipe>())::type;
    if constexpr (!std::is_void_v<type>) return type_name<type>();
  }
  return {};
}

/// A rule of the user's that the run can come to break: keel's O09 speaks for it.
template <class Recipe, class EntryPoint, int Broken>
constexpr bool is_user_rule() {
  using rule = typename decltype(rule_broken_at<Recipe, EntryPoint, Broken>())::type;
  return !rule_of_keel<rule> && broken_at<Recipe, EntryPoint>.all[Broken].from != origin::recipe;
}

template <class Recipe, class EntryPoint, int Broken>
constexpr violation violation_at() {
  using rule = typename decltype(rule_broken_at<Recipe, EntryPoint, Broken>())::type;
  auto const& found = broken_at<Recipe, EntryPoint>.all[Broken];
  return {rule::id, rule::text, found.from, found.number};
}

/// The sentences of all broken rules, one a line, and under a sentence what it is because of: a type, or a rule of the user's.
template <class Recipe, class EntryPoint>
constexpr auto compute_sentences() {
  // A sentence, the words before it, what it is because of, and a user's own sentence in its place.
  text<broken_at<Recipe, EntryPoint>.count * (3 * rule::longest_text + short_name::longest)> all;
  [&]<int... Broken>(std::integer_sequence<int, Broken...>) {
    (
        [&] {
          if (all.size() > 0) all << "\n";
          if constexpr (is_user_rule<Recipe, EntryPoint, Broken>()) all << rule::O09::text << "\n  because of ";
          all << describe(violation_at<Recipe, EntryPoint, Broken>()).c_str();
          constexpr short_name type = culprit_of<Recipe, EntryPoint, Broken>();
          if (!type.empty()) all << "\n  because of " << type.letters;
        }(),
        ...);
  }(all_broken<Recipe, EntryPoint>{});
  return all;
}
template <class Recipe, class EntryPoint>
inline constexpr auto sentences_of = compute_sentences<Recipe, EntryPoint>();

// Where a static_assert takes a text that is computed, one of them says all.
#if defined(__cpp_static_assert) && __cpp_static_assert >= 202306L
#ifdef __clang__
#pragma clang diagnostic push
// clang takes it in C++20, too.
#pragma clang diagnostic ignored "-Wc++26-extensions"
#endif
template <class Recipe, class EntryPoint, class Broken>
struct rejected {
  static_assert(false, sentences_of<Recipe, EntryPoint>);
};
#ifdef __clang__
#pragma clang diagnostic pop
#endif
template <class Recipe, class EntryPoint>
struct rejected<Recipe, EntryPoint, std::integer_sequence<int>> {};
#else
/// The errors of a recipe: one base class a broken rule, whose static_assert speaks.
template <class Recipe, class EntryPoint, class Broken>
struct rejected;
template <class Recipe, class EntryPoint, int... Broken>
struct rejected<Recipe, EntryPoint, std::integer_sequence<int, Broken...>> : demand_at<Recipe, EntryPoint, Broken>... {};
#endif

template <class Recipe, class EntryPoint = at_recipe>
using verdict_of = rejected<Recipe, EntryPoint, all_broken<Recipe, EntryPoint>>;

template <class Recipe>
constexpr bool is_valid() {
  if constexpr (is_recipe<Recipe>) {
    return count_broken<all_rules<Recipe>, (config_of<Recipe>.given > 0)>(config_of<Recipe>) == 0;
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

namespace detail {
template <class Recipe>
struct broken_if_recipe {
  using type = void;
};
template <is_recipe Recipe>
struct broken_if_recipe<Recipe> {
  using type = all_broken<Recipe, at_recipe>;
};

template <class Recipe>
constexpr auto reasons_of() {
  if constexpr (is_recipe<Recipe>) {
    return compute_sentences<Recipe, at_recipe>();
  } else {
    return slot_text{} << rule::D21::text;
  }
}
}  // namespace detail

/// The sentences of the rules that a recipe breaks, one a line, under it the type that it means, with data() and size(): to print, and from C++26 on for
/// `static_assert(keel::valid<mine>, keel::reasons<mine>);`.
template <class Recipe>
inline constexpr auto reasons = detail::reasons_of<Recipe>();

/// Demands a valid recipe: `template struct keel::checked<mine>;` fails to compile with one error a broken rule, from C++26 on
/// with one error that says all. The trainer does it by itself.
template <class Recipe, class Broken = typename detail::broken_if_recipe<Recipe>::type>
struct checked : detail::verdict_of<Recipe> {};

#if !(defined(__cpp_static_assert) && __cpp_static_assert >= 202306L)
// Without the class between, which would be one more note to each error.
template <class Recipe, int... Broken>
struct checked<Recipe, std::integer_sequence<int, Broken...>> : detail::demand_at<Recipe, detail::at_recipe, Broken>... {};
#endif

template <class Recipe>
struct checked<Recipe, void> : rule::D21::demand<false, Recipe> {};

}  // namespace keel
