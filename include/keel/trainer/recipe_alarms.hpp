// The alarms of a recipe as values, for a loop that is independent of the recipe's type.
#pragma once

#include <keel/health/alarm_watch.hpp>
#include <keel/policy/checkpoint.hpp>
#include <keel/policy/health.hpp>
#include <keel/recipe/config_of.hpp>
#include <keel/recipe/recipe.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/trainer/run_loop.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Returns the alarms of a recipe. Compile error U42 if the health policy contains anything but alarms, and U45 if an alarm saves a
/// checkpoint but the recipe has no checkpoint policy.
template <class Recipe>
run_alarms collect_recipe_alarms() {
  using policy = policy_of<Recipe, slot::health>;
  if constexpr (!health::has_alarms_only<policy>()) {
    reject_call<rule::U42, Recipe>();
    return {};
  } else {
    if constexpr (config_of<Recipe>.checkpoint.kind == checkpoint::kind::never &&
                  health::binds_action<policy>(health::action::checkpoint))
      reject_call<rule::U45, Recipe>();
    return {alarms_of<policy>(), health::binds_action<policy>(health::action::incident)};
  }
}

}  // namespace keel::detail::inline KEEL_MODE
