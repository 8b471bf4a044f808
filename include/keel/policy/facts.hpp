// Facts that a type declares: a model, an optimizer, a batch or a source of batches may carry facts that rules need.
//     struct net : torch::nn::Module { using facts = keel::model::has<keel::model::batch_norm>; .. };
//     template <> struct keel::facts_of<their::optimizer> { using facts = keel::optimizer::is<keel::optimizer::closure>; };
// A type without facts declares nothing, which is always safe: a fact can break a rule, but no rule requires one.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel {

/// Specialize it for a type of another library. Facts that the type itself declares count, too.
template <class Type>
struct facts_of {};

namespace detail {
template <class Type>
concept declares_facts = requires {
  // On a separate line: in the line below, clang 22 would accept a private member.
  typename Type::facts;
  requires policy<typename Type::facts>;
};
}  // namespace detail

/// Returns the facts that a type declares for one of the slots model, optimizer and data.
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
