// world: how many ranks a recipe is for. Not a mechanism: the launcher decides, and a recipe for another number is refused.
//   any       the default: what shard says and what the launcher brings.
//   size<N>   exactly N ranks (W01).
// Left out: how the ranks are laid out over machines.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::world {

struct settings {
  bool declared = false;
  long long ranks = 0;  ///< if declared
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

struct any : fills<slot::world> {
  static constexpr settings configured{};
};
template <long long Ranks>
struct size : fills<slot::world> {
  static constexpr settings configured{true, Ranks};
};

}  // namespace keel::world

namespace keel {
template <>
struct settings_of<slot::world> {
  using type = world::settings;
};
template <>
struct default_policy<slot::world> {
  using type = world::any;
};
}  // namespace keel
