// Checks at compile time that custom policies can be called and that their state is saved.
#pragma once

#include <cstdint>
#include <keel/clip/clip.hpp>
#include <keel/policy/state.hpp>
#include <keel/recipe/recipe.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/schedule/lr_schedule.hpp>
#include <type_traits>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// True if a policy other than clip has state: only a clip policy's state is created and saved.
template <class Recipe, class... Slots>
constexpr bool has_state_outside_clip(slot_list<Slots...>) {
  return ((!std::is_same_v<Slots, slot::clip> && stateful<policy_of<Recipe, Slots>>) || ...);
}

/// Names of members that a user might expect keel to call. with_names<Policy> inherits from both the policy and this struct. If the policy
/// declares one of these names, looking it up is ambiguous, so a requires-expression that uses it is false.
struct reserved_names {
  int decide, apply, update, is_due, should_stop, should_save, evaluate, factor, clip, action, judge, handle, on_nonfinite,
      should_skip, should_rollback;
  int operator()();
};
template <class Policy>
struct with_names : Policy, reserved_names {};

/// True if the policy declares one of the names above where keel never calls it, or has data members.
template <class Policy>
constexpr bool has_uncalled_members() {
  if constexpr (std::is_same_v<Policy, typename Policy::in_slot::default_policy> || std::is_final_v<Policy>) {
    return false;
  } else if constexpr (!std::is_empty_v<Policy>) {
    return true;
  } else {
    using probe = with_names<Policy>;
    constexpr bool has_another = !requires {
      &probe::decide, &probe::apply, &probe::update, &probe::is_due, &probe::should_stop, &probe::should_save, &probe::evaluate,
          &probe::operator();
    };
    // A policy that has a function which keel calls may use other names of this list for its own purposes.
    constexpr bool has_action = !requires {
      &probe::action, &probe::judge, &probe::handle, &probe::on_nonfinite, &probe::should_skip, &probe::should_rollback;
    };
    constexpr bool calls_factor = std::is_same_v<typename Policy::in_slot, slot::schedule>;
    bool calls_clip = false;
    if constexpr (std::is_same_v<typename Policy::in_slot, slot::clip>)
      calls_clip = Policy::configured.kind == clip::kind::custom;
    bool const has_factor = !requires { &probe::factor; };
    bool const has_clip = !requires { &probe::clip; };
    return has_another || (has_action && !calls_factor && !calls_clip) || (has_factor && !calls_factor) ||
           (has_clip && !calls_clip);
  }
}
template <class Recipe, class... Slots>
constexpr bool has_uncalled_members(slot_list<Slots...>) {
  return (has_uncalled_members<policy_of<Recipe, Slots>>() || ...);
}

/// Rejects (U19, U20, U21, U39) a custom policy that cannot be called or saved.
template <class Recipe>
constexpr void require_custom_policies_fit() {
  using clip_policy = policy_of<Recipe, slot::clip>;
  using schedule_policy = policy_of<Recipe, slot::schedule>;
  if constexpr (clip_policy::configured.kind == clip::kind::custom && !custom_clip<clip_policy> &&
                !custom_stateful_clip<clip_policy>) {
    reject_call<rule::U19, clip_policy>();
  }
  if constexpr (schedule_policy::configured.kind == schedule::kind::custom && !custom_schedule<schedule_policy>) {
    reject_call<rule::U20, schedule_policy>();
  }
  if constexpr (has_state_outside_clip<Recipe>(slots{})) reject_call<rule::U21, Recipe>();
  if constexpr (has_uncalled_members<Recipe>(slots{})) reject_call<rule::U39, Recipe>();
}

}  // namespace keel::detail::inline KEEL_MODE
