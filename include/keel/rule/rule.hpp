// What a rule is. A rule names a combination that would waste a run:
//     struct A01 {
//       static constexpr char const* id;                     append-only, as in the catalogue
//       static constexpr char const* text;                   "[A01] what cannot be together and why. Fix: names to type."
//       static constexpr bool broken(config const&);         the one predicate behind every door
//       template <bool Holds, class Recipe> struct demand;   a class whose static_assert says the text
//     };
// An order rule has no `broken`: it forbids a call and not a recipe, and the types of the step ask its `demand`.
#pragma once

#include <keel/recipe/config.hpp>

namespace keel::rule {

template <class... Rules>
struct list {};

template <class Rule>
concept value_rule = requires(config const& value) {
  { Rule::id } -> std::convertible_to<char const*>;
  { Rule::text } -> std::convertible_to<char const*>;
  { Rule::broken(value) } -> std::same_as<bool>;
};

}  // namespace keel::rule
