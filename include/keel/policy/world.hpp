// world: how many ranks a recipe is for. Not a mechanism: the launcher decides, and a recipe for another number is rejected.
//   any       the default: what shard says and what the launcher brings.
//   size<N>   exactly N ranks (W01).
// Left out: how the ranks are laid out over machines.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct world;
}

namespace keel::world {

struct settings {
  bool declared = false;  ///< size was given
  long long ranks = 0;    ///< if declared
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

struct slot::world : slot_description {
  using settings = keel::world::settings;
  using default_policy = keel::world::any;
  static constexpr char const* name = "world";
  static constexpr char const* given_twice = "D28";
  static constexpr bool is_same_policy(settings const& a, settings const& b) { return a.declared == b.declared; }
  static constexpr policy_list<settings, 2> policies() {
    return {{{"any", {}}, {"size", {true, 0}, " ranks ", "ranks", true}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.number("ranks", s.ranks); }
};

}  // namespace keel
