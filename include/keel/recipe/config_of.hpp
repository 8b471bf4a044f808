// Folds a recipe's list of types into one constexpr value.
#pragma once

#include <keel/config/describe.hpp>
#include <keel/config/open_numbers.hpp>
#include <keel/policy/state.hpp>
#include <keel/recipe/judge.hpp>
#include <keel/recipe/recipe.hpp>

namespace keel {
namespace detail {

/// True for a custom rule that follows the grammar and whose id is not reserved for keel.
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

/// Faults of a type in a recipe, which are found before any rule checks the recipe.
struct entry_faults {
  bool is_unknown = false;  ///< neither policy, rule nor accept
  bool options_disagree = false;
  bool lacks_unit = false;  ///< its interval has no unit
  bool state_is_unsaved = false;
  bool is_malformed_rule =
      false;  ///< resembles a rule but is none, or is both a rule and a policy, which would never be checked
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
  // The first policy for a slot takes effect; a rule reports the second.
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

/// True if the entry is a custom rule and the first one with its id.
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
    // A rule that repeats an id is malformed, because errors could not distinguish the two.
    int place = 0;
    ((value.malformed_rules += is_own_rule<Entries>() && !is_first_own<Entries, Entries...>(place) ? 1 : 0, ++place), ...);
  }
  return value;
}

}  // namespace detail

/// The configuration of a recipe.
template <class Recipe>
inline constexpr config config_of = detail::fold(decltype(detail::list_of(static_cast<Recipe const*>(nullptr))){});

namespace detail {
/// Returns the configuration of a recipe that is used without a trainer, which would supply its numbers.
template <class Recipe>
consteval config closed_config() {
  static_assert(config_of<Recipe>.given == 0,
                "the recipe leaves numbers open that this call needs. Fix: pass it a trainer's or step's recipe_value().");
  return config_of<Recipe>;
}
}  // namespace detail

/// Returns the recipe as a table: `std::cout << keel::describe<mine>();`
template <class Recipe>
recipe_text describe(shown what = shown::all) {
  return describe(config_of<Recipe>, what);
}

}  // namespace keel
