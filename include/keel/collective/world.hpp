// How the ranks' values become one, and the world that a single process is. A world is a type with
//     int size() const;  int rank() const;
//     Value combine(Reduction, Value const& mine) const;     called by all ranks; every one gets the same value
#pragma once

#include <concepts>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

namespace reduce {
/// Their sum.
struct sum {};
/// Their mean.
struct mean {};
/// The smallest.
struct min {};
/// The largest.
struct max {};
}  // namespace reduce

/// How the ranks' values become one.
template <class Type>
concept reduction = std::same_as<Type, reduce::sum> || std::same_as<Type, reduce::mean> || std::same_as<Type, reduce::min> ||
                    std::same_as<Type, reduce::max>;

/// A world, as the head of this header lists what it has.
template <class World>
concept world_like = requires(World const& world) {
  { world.size() } -> std::convertible_to<int>;
  { world.rank() } -> std::convertible_to<int>;
  { world.combine(reduce::max{}, false) } -> std::convertible_to<bool>;
  { world.combine(reduce::mean{}, 1.0) } -> std::convertible_to<double>;
};

/// A process alone agrees with itself, at no cost.
struct world_of_one {
  /// One rank.
  static constexpr int size() { return 1; }
  /// Rank 0.
  static constexpr int rank() { return 0; }
  /// Returns the value itself.
  template <reduction Reduction, class Value>
  static constexpr Value combine(Reduction, Value const& local) {
    return local;
  }
};

}  // namespace keel::inline KEEL_MODE
