// The compile-time entry points: `valid` returns whether a recipe is valid, and `checked` requires it.
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

/// The custom rules in a recipe.
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

/// All rules for a recipe except those about keel::accept: keel's rules and the recipe's custom rules.
template <class Recipe>
using rules_about = typename rule::detail::joined<rule::catalogue, own_rules_in<Recipe>>::type;
template <class Recipe>
using all_rules = typename rule::detail::joined<rule::catalogue, own_rules_in<Recipe>, rule::accept_rules>::type;

// Depends only on the list and not on the recipe, so that further recipes cause no instantiation here. A recipe without open numbers does
// not instantiate the code for them.
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

// The rules of this entry point. A named type, so that the compiler's notes do not list all rules.
struct at_recipe {
  template <class Recipe>
  using rules = all_rules<Recipe>;
};

template <class Recipe, class EntryPoint>
inline constexpr auto broken_at =
    find_broken<typename EntryPoint::template rules<Recipe>, (config_of<Recipe>.given > 0),
                count_broken<typename EntryPoint::template rules<Recipe>, (config_of<Recipe>.given > 0)>(config_of<Recipe>)>(
        config_of<Recipe>);

// A class with all rules as bases: overload resolution finds the rule of an index without a chain of instantiations.
template <int Index, class Rule>
struct indexed {};
template <class Indices, class List>
struct indexed_rules;
template <int... Index, class... Rules>
struct indexed_rules<std::integer_sequence<int, Index...>, rule::list<Rules...>> : indexed<Index, Rules>... {};
template <int Index, class Rule>
box<Rule> rule_at(indexed<Index, Rule>);

/// Names the user-defined rule that the message of O09 is about.
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

/// The broken rule at an index among the broken ones.
template <class Recipe, class EntryPoint, int Broken>
constexpr auto rule_broken_at() {
  using list = typename EntryPoint::template rules<Recipe>;
  using rules = indexed_rules<std::make_integer_sequence<int, rule_table<list>::count>, list>;
  return decltype(rule_at<broken_at<Recipe, EntryPoint>.all[Broken].rule>(rules{})){};
}
/// The class whose static_assert reports the broken rule.
template <class Recipe, class EntryPoint, int Broken>
using demand_at = typename decltype(demand_of<Recipe, typename decltype(rule_broken_at<Recipe, EntryPoint, Broken>())::type,
                                              broken_at<Recipe, EntryPoint>.all[Broken].from,
                                              broken_at<Recipe, EntryPoint>.all[Broken].number>())::type;

/// The indices of the broken rules. They are determined before any error is reported, so that a valid recipe costs a single evaluation, and
/// the compiler's notes contain only the broken rules instead of the whole catalogue.
template <class Recipe, class EntryPoint>
using all_broken = std::make_integer_sequence<int, broken_at<Recipe, EntryPoint>.count>;

/// Returns the name of the type that broke the rule; empty if there is none.
template <class Recipe, class EntryPoint, int Broken>
constexpr short_name culprit_of() {
  using rule = typename decltype(rule_broken_at<Recipe, EntryPoint, Broken>())::type;
  if constexpr (means_a_type<rule> && is_recipe<Recipe> && broken_at<Recipe, EntryPoint>.all[Broken].from == origin::recipe) {
    using type = typename decltype(culprit<rule, Recipe>())::type;
    if constexpr (!std::is_void_v<type>) return type_name<type>();
  }
  return {};
}

/// True for a user-defined rule that only a reachable configuration breaks; keel's O09 reports it.
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

/// Returns the messages of all broken rules, one per line, each followed by its cause, if known: a type or a user-defined rule.
template <class Recipe, class EntryPoint>
constexpr auto compute_sentences() {
  // Room for a message, its prefix, its cause, and the message of a user-defined rule.
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

// If static_assert accepts a computed text, one of them reports all broken rules.
#if defined(__cpp_static_assert) && __cpp_static_assert >= 202306L
#ifdef __clang__
#pragma clang diagnostic push
// clang accepts it in C++20, too.
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
/// The errors of a recipe: one base class per broken rule, whose static_assert reports it.
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

/// True if the recipe breaks no rule that can be checked before the run. Never a hard error.
template <class Recipe>
inline constexpr bool valid = detail::is_valid<Recipe>();

/// Checks a configuration of this recipe, such as config_of<Recipe> with facts filled in, against keel's rules and the recipe's custom
/// rules.
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

/// The messages of the rules that a recipe breaks, one per line, each followed by the type that caused it, if known. Has data() and size(),
/// for printing and, from C++26 on, for `static_assert(keel::valid<mine>, keel::reasons<mine>);`.
template <class Recipe>
inline constexpr auto reasons = detail::reasons_of<Recipe>();

/// Requires a valid recipe: `template struct keel::checked<mine>;` fails to compile with one error per broken rule; from C++26 on a single
/// error contains all of them. Trainers use it automatically.
template <class Recipe, class Broken = typename detail::broken_if_recipe<Recipe>::type>
struct checked : detail::verdict_of<Recipe> {};

#if !(defined(__cpp_static_assert) && __cpp_static_assert >= 202306L)
// Derives directly, because an intermediate class would add a note to each error.
template <class Recipe, int... Broken>
struct checked<Recipe, std::integer_sequence<int, Broken...>> : detail::demand_at<Recipe, detail::at_recipe, Broken>... {};
#endif

template <class Recipe>
struct checked<Recipe, void> : rule::D21::demand<false, Recipe> {};

}  // namespace keel
