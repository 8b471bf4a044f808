// State that a policy keeps between updates, and how a type declares that it can be saved.
//
// A stateful policy has a member type `state`, which lists its fields once, for saving and loading:
//     struct mine : keel::fills<keel::slot::clip> {
//       struct state { double level = 0; void visit(auto& archive) { archive("level", level); } };
//       ..
//     };
// A public state without `visit` would be lost by every checkpoint, so it is rejected (rule S05). keel does not see a private member type
// and does not treat it as the policy's state. A field is a bool, integer, enum, float, double, std::string or at::Tensor, another type
// with `visit`, or a list of these: keel/checkpoint/fields.hpp, rule S27. The state is copied before every update, so that an update that
// is retried after running out of memory starts from the original state. Therefore replace a tensor in the state by a new one instead of
// modifying it in place.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel {

/// A minimal archive for checking the signature of `visit`.
struct archive_probe {
  /// Takes a named field.
  template <class Field>
  constexpr void operator()(char const* /*name*/, Field& /*field*/) const {}
};

/// A state that lists its fields: `void visit(auto& archive)`.
template <class State>
concept saveable = requires(State& state, archive_probe& archive) { state.visit(archive); };

/// A policy with a member type `state`.
template <class Policy>
concept stateful = requires { typename Policy::state; };

/// False for a stateful policy whose state does not list its fields (S05).
template <class Policy>
inline constexpr bool state_is_saveable = true;
/// False if the policy's state does not list its fields.
template <stateful Policy>
inline constexpr bool state_is_saveable<Policy> = saveable<typename Policy::state>;

}  // namespace keel
