// A recipe has one slot for each decision of a training run; a policy fills one slot. This header has what every slot's
// header builds on: the list of slots, the base of a policy, and how a policy's options are folded into its value.
//
// A policy is any type with
//     static constexpr keel::slot in_slot;          the slot that it fills (inherit keel::fills<slot::clip>)
//     static constexpr clip::settings configured;   that slot's settings, a structural aggregate with ==
// keel's own policies and a user's are told apart nowhere below.
#pragma once

#include <concepts>
#include <type_traits>

namespace keel {

enum class slot : unsigned char {
  precision,
  loss_scale,
  accumulate,
  clip,
  nonfinite,
  spike,
  schedule,
  checkpoint,
  recompute,
  shard,
  offload,
  attention,
  oom,
  health,
  determinism,
  objective,
  ema,
  evaluation,
  profile,
  timeout,
  // Facts: what a recipe says of the things around it. Nothing is done with them; rules ask for them.
  model,
  optimizer,
  data,
  device,
  world,
};

inline constexpr int slot_count = static_cast<int>(slot::world) + 1;

/// The base of every policy: `struct mine : keel::fills<keel::slot::clip> { .. };`
template <slot Slot>
struct fills {
  static constexpr slot in_slot = Slot;
  /// False if two options of the policy contradict each other (rule D20).
  static constexpr bool options_agree = true;
  /// False if its interval has no unit that the policy takes (rule D26).
  static constexpr bool has_unit = true;
};

/// The settings type of a slot; each slot's header specialises it.
template <slot Slot>
struct settings_of;

/// The policy of a slot that a recipe leaves open; each slot's header specialises it.
template <slot Slot>
struct default_policy;

namespace detail {
// Not through `Type::in_slot` alone: of a member that is not static that is a hard error in g++ 12.
template <class Type>
concept policy_members_are_static = requires {
  { *&Type::in_slot } -> std::convertible_to<slot>;
  *&Type::configured;
};
}  // namespace detail

/// A type that may stand in a recipe. A type that is nearly one is reported as rule D00.
template <class Type>
concept policy = detail::policy_members_are_static<Type> && requires {
  requires std::is_same_v < std::remove_cvref_t<decltype(Type::configured)>,
  typename settings_of<Type::in_slot>::type > ;
  typename std::bool_constant<(Type::configured == Type::configured)>;
};

/// An option of a policy: `static constexpr void apply(Settings&)` writes what it decides.
template <class Option, class Settings>
concept option_of = requires {
  static_cast<void (*)(Settings&)>(&Option::apply);
};

template <class Settings, class... Options>
constexpr Settings with_options(Settings settings) {
  (Options::apply(settings), ...);
  return settings;
}

/// True if every two of the options commute. Two that do not write the same field with different values, so that one
/// of them would be accepted and ignored.
template <class Settings, class... Options>
constexpr bool options_agree(Settings const& initial) {
  using step = void (*)(Settings&);
  // By count and not to a null at the end: under UBSan g++ 12 takes no comparison of functions for a constant.
  constexpr int count = sizeof...(Options);
  step const steps[count + 1] = {&Options::apply...};
  for (int i = 0; i < count; ++i) {
    for (int j = i + 1; j < count; ++j) {
      Settings forward = initial;
      Settings backward = initial;
      steps[i](forward), steps[j](forward);
      steps[j](backward), steps[i](backward);
      if (!(forward == backward)) return false;
    }
  }
  return true;
}

}  // namespace keel
