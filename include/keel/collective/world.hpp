// Reductions over the ranks, the world concept, and the world of a single process. A world is a type with
//     int size() const;  int rank() const;
//     Value combine(Reduction, Value const& local) const;    collective; returns the same value on all ranks
#pragma once

#include <concepts>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

namespace reduce {
/// The sum over the ranks.
struct sum {};
/// The mean over the ranks.
struct mean {};
/// The minimum over the ranks.
struct min {};
/// The maximum over the ranks.
struct max {};
}  // namespace reduce

/// A tag type that names a reduction over the ranks.
template <class Type>
concept reduction = std::same_as<Type, reduce::sum> || std::same_as<Type, reduce::mean> || std::same_as<Type, reduce::min> ||
                    std::same_as<Type, reduce::max>;

/// A world: a type with size(), rank() and combine(), as listed at the top of this header.
template <class World>
concept world_like = requires(World const& world) {
  { world.size() } -> std::convertible_to<int>;
  { world.rank() } -> std::convertible_to<int>;
  { world.combine(reduce::max{}, false) } -> std::convertible_to<bool>;
  { world.combine(reduce::mean{}, 1.0) } -> std::convertible_to<double>;
};

/// The world of a single process; its combine() costs nothing.
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
