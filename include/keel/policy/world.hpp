// world: the number of ranks that a recipe is for. It does not start any: the launcher determines the number, and a recipe for another one
// is rejected.
//   any       the default: any number that shard and the launcher allow.
//   size<N>   exactly N ranks (W01).
// Left out: how the ranks are distributed over machines.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct world;
}

namespace keel::world {

struct settings {
  bool declared = false;  ///< true if size was given
  long long ranks = 0;    ///< number of ranks, if declared
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
