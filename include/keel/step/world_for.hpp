// The world that a step gets: of a recipe for one rank, none of several.
#pragma once

#include <concepts>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Rejected (U57) unless the recipe takes several.
template <class World, class Recipe, bool TakesSeveral>
World world_for([[maybe_unused]] world_of_ranks const& world) {
  if constexpr (!TakesSeveral) reject_call<rule::U57, Recipe>();
  if constexpr (std::same_as<World, world_of_ranks>) {
    return world;
  } else {
    return {};
  }
}

}  // namespace keel::detail::inline KEEL_MODE
