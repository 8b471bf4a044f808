// State that a policy keeps from one update to the next, and how a type says that it can be saved.
//
// A stateful policy names its state and the state lists its fields once, for both directions:
//     struct mine : keel::fills<keel::slot::clip> {
//       struct state { double level = 0; void visit(auto& archive) { archive("level", level); } };
//       ..
//     };
// A public state without `visit` would be forgotten by every checkpoint, so it is rejected (rule S05). A private one is not
// seen by keel, so that it is not a state of the policy. A field is a bool, integer, enum, float, double, std::string or
// at::Tensor, another type with `visit`, or a list of these: keel/checkpoint/fields.hpp, rule S27. A state is copied before
// every update, so that one that begins again for want of memory finds it as it was: a tensor in it is replaced by another one
// and not changed in place.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel {

/// Stands for any archive where only the shape of `visit` is asked for.
struct archive_probe {
  /// Takes a field by its name.
  template <class Field>
  constexpr void operator()(char const* /*name*/, Field& /*field*/) const {}
};

/// A state that lists its fields: `void visit(auto& archive)`.
template <class State>
concept saveable = requires(State& state, archive_probe& archive) { state.visit(archive); };

/// A policy that names its state: `struct state`.
template <class Policy>
concept stateful = requires { typename Policy::state; };

/// False for a stateful policy whose state does not list its fields (S05).
template <class Policy>
inline constexpr bool state_is_saveable = true;
/// As above.
template <stateful Policy>
inline constexpr bool state_is_saveable<Policy> = saveable<typename Policy::state>;

}  // namespace keel
