// What a type says of itself: a model, an optimizer, a batch or a source of batches may carry facts that rules ask for.
//     struct net : torch::nn::Module { using facts = keel::model::has<keel::model::batch_norm>; .. };
//     template <> struct keel::facts_of<their::optimizer> { using facts = keel::optimizer::is<keel::optimizer::closure>; };
// A type without facts says nothing, which is the safe case: rules hold against a fact and never need one.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel {

/// Specialise it for a type that is not one's own; the type's own member counts too.
template <class Type>
struct facts_of {};

namespace detail {
template <class Type>
concept declares_facts = requires {
  // By itself: in the line below clang 22 would take one that is private.
  typename Type::facts;
  requires policy<typename Type::facts>;
};
}  // namespace detail

/// What a type says of itself for one of the slots of facts: model, optimizer, data.
template <class Slot, class Type>
constexpr auto facts() {
  typename Slot::settings stated{};
  if constexpr (detail::declares_facts<Type>) {
    if constexpr (std::is_same_v<typename Type::facts::in_slot, Slot>) stated = stated | Type::facts::configured;
  }
  if constexpr (detail::declares_facts<facts_of<Type>>) {
    if constexpr (std::is_same_v<typename facts_of<Type>::facts::in_slot, Slot>)
      stated = stated | facts_of<Type>::facts::configured;
  }
  return stated;
}

}  // namespace keel
