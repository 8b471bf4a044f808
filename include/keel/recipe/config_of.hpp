// Folds a recipe's list of types into one constexpr value.
#pragma once

#include <keel/config/describe.hpp>
#include <keel/config/open_numbers.hpp>
#include <keel/policy/state.hpp>
#include <keel/recipe/judge.hpp>
#include <keel/recipe/recipe.hpp>

namespace keel {
namespace detail {

/// A custom rule that follows the grammar and takes none of keel's ids.
template <class Entry>
constexpr bool is_own_rule() {
  if constexpr (!policy<Entry> && rule::value_rule<Entry>) {
    return rule::is_well_formed(Entry::id, Entry::text) && !rule::is_id_of_keel(Entry::id);
  } else {
    return false;
  }
}

template <class Entry>
concept acceptance = requires { requires std::is_same_v<std::remove_cvref_t<decltype(Entry::accepted_rule)>, rule_id>; };

/// What is wrong with a type in a recipe, before any rule judges the recipe.
struct entry_faults {
  bool is_unknown = false;  ///< neither policy, rule nor accept
  bool options_disagree = false;
  bool lacks_unit = false;  ///< of its interval
  bool state_is_unsaved = false;
  bool is_malformed_rule = false;  ///< meant as a rule, and not one; a policy that is a rule too would never be asked
};

template <class Entry>
constexpr entry_faults faults_of() {
  entry_faults faults;
  bool const resembles_rule = rule::resembles_rule<Entry>;
  if constexpr (policy<Entry>) {
    if constexpr (requires { Entry::options_agree; }) faults.options_disagree = !Entry::options_agree;
    if constexpr (requires { Entry::has_unit; }) faults.lacks_unit = !Entry::has_unit;
    faults.state_is_unsaved = !state_is_saveable<Entry>;
    faults.is_malformed_rule = resembles_rule;
  } else if constexpr (!acceptance<Entry>) {
    faults.is_unknown = !resembles_rule;
    if constexpr (rule::resembles_rule<Entry>) faults.is_malformed_rule = !is_own_rule<Entry>();
  }
  return faults;
}

template <class Policy>
constexpr void fold_policy(config& to, unsigned& seen) {
  using slot = typename Policy::in_slot;
  unsigned const bit = 1U << index_of<slot>;
  // Of a slot that is given twice the first counts here; a rule reports the second.
  if ((seen & bit) == 0) to.*place<slot> = Policy::configured;
  if constexpr (requires { Policy::configured.own; }) {
    using kind = decltype(slot::settings::kind);
    if (Policy::configured.kind == kind::custom) (to.*place<slot>).own = name_of<Policy>();
  }
  given_counter open;
  auto settings = Policy::configured;
  slot::fields(settings, open);
  to.given += open.count;
  to.repeated |= seen & bit;
  seen |= bit;
}

template <class Entry>
constexpr void fold_entry(config& to, unsigned& seen) {
  if constexpr (policy<Entry>) {
    fold_policy<Entry>(to, seen);
  } else if constexpr (acceptance<Entry>) {
    if (to.accepted_count < max_accepted) to.accepted[to.accepted_count] = Entry::accepted_rule;
    ++to.accepted_count;
  }
  constexpr entry_faults faults = faults_of<Entry>();
  to.unknown_entries += faults.is_unknown;
  to.disagreeing_options += faults.options_disagree;
  to.unitless_intervals += faults.lacks_unit;
  to.unsaved_states += faults.state_is_unsaved;
  to.malformed_rules += faults.is_malformed_rule;
}

template <class Entry>
constexpr rule_id own_id() {
  if constexpr (is_own_rule<Entry>()) {
    return Entry::id;
  } else {
    return {};
  }
}

/// True for the first of the entries that is an own rule with this id.
template <class Entry, class... Entries>
constexpr bool is_first_own(int place) {
  constexpr rule_id ids[] = {own_id<Entries>()...};
  if constexpr (!is_own_rule<Entry>()) return false;
  for (int i = 0; i < place; ++i) {
    if (ids[i] == own_id<Entry>()) return false;
  }
  return true;
}

template <class... Entries>
constexpr config fold(recipe<Entries...> const*) {
  config value;
  [[maybe_unused]] unsigned seen = 0;
  (fold_entry<Entries>(value, seen), ...);
  if constexpr ((is_own_rule<Entries>() || ...)) {
    // Two rules of one id, or one rule twice: a reader of the error could not distinguish them.
    int place = 0;
    ((value.malformed_rules += is_own_rule<Entries>() && !is_first_own<Entries, Entries...>(place) ? 1 : 0, ++place), ...);
  }
  return value;
}

}  // namespace detail

/// The recipe as a value.
template <class Recipe>
inline constexpr config config_of = detail::fold(decltype(detail::list_of(static_cast<Recipe const*>(nullptr))){});

namespace detail {
/// Of a recipe that stands by itself, without a trainer that would have its numbers.
template <class Recipe>
consteval config closed_config() {
  static_assert(config_of<Recipe>.given == 0,
                "the recipe leaves numbers open that this call needs. Fix: pass it a trainer's or step's recipe_value().");
  return config_of<Recipe>;
}
}  // namespace detail

/// The recipe as a table: `std::cout << keel::describe<mine>();`
template <class Recipe>
recipe_text describe(shown what = shown::all) {
  return describe(config_of<Recipe>, what);
}

}  // namespace keel
