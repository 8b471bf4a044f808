// Compile-time checks of the world that is passed to a step.
#pragma once

#include <keel/collective/world_of_ranks.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Returns `world`. Rejected (U57) unless the recipe is for several ranks.
template <class Recipe, bool AcceptsWorld>
world_of_ranks checked_world(world_of_ranks const& world) {
  if constexpr (!AcceptsWorld) reject_call<rule::U57, Recipe>();
  return world;
}

/// Rejected (U56) if the recipe needs several ranks and no world was passed.
template <class Recipe, bool Replicates>
void require_world() {
  if constexpr (Replicates) reject_call<rule::U56, Recipe>();
}

}  // namespace keel::detail::inline KEEL_MODE
