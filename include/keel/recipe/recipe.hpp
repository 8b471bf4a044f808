// A recipe: a list of policies that describes a run. Looks up the policy of a slot.
#pragma once

#include <keel/config/config.hpp>

namespace keel {

/// A training run as a type: `struct pretrain : keel::recipe<keel::precision::bf16, ..> {};`. The order of the policies does not matter; an
/// empty slot has its default policy. Any list is a recipe; keel::valid checks whether it is a valid one.
template <class... Policies>
struct recipe {};

namespace detail {

template <class... Policies>
recipe<Policies...>* list_of(recipe<Policies...> const*);

template <class Recipe>
concept is_recipe = requires(Recipe const* pointer) { detail::list_of(pointer); };

template <class Type>
struct box {
  using type = Type;
};

// The first policy for a slot takes effect; a rule reports the second.
template <class Slot, class First, class... Rest>
constexpr auto find_policy() {
  if constexpr (policy<First>) {
    if constexpr (std::is_same_v<typename First::in_slot, Slot>) {
      return box<First>{};
    } else if constexpr (sizeof...(Rest) > 0) {
      return find_policy<Slot, Rest...>();
    } else {
      return box<typename Slot::default_policy>{};
    }
  } else if constexpr (sizeof...(Rest) > 0) {
    return find_policy<Slot, Rest...>();
  } else {
    return box<typename Slot::default_policy>{};
  }
}

template <class Slot, class... Policies>
auto policy_in(recipe<Policies...> const*) {
  if constexpr (sizeof...(Policies) == 0) {
    return box<typename Slot::default_policy>{};
  } else {
    return find_policy<Slot, Policies...>();
  }
}

}  // namespace detail

/// The policy of a recipe's slot: the recipe's, or the slot's default.
template <class Recipe, class Slot>
using policy_of = typename decltype(detail::policy_in<Slot>(static_cast<Recipe const*>(nullptr)))::type;

}  // namespace keel
