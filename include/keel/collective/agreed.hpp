// agreed<T>: a value that is the same on every rank, because it results from a collective. A condition that guards a collective must be an
// agreed<T> (N26), so that either all ranks call the collective or none does.
//     keel::agreed<bool> stop = keel::agree(world, stop_here);     true if it is true on any rank
#pragma once

#include <concepts>
#include <keel/collective/world.hpp>
#include <keel/core/finite.hpp>
#include <keel/rule/reject_call.hpp>
#include <optional>
#include <type_traits>
#include <utility>

namespace keel::inline KEEL_MODE {

template <class Value>
class agreed;

/// Reduces one value per rank to an agreed<T>, by maximum unless `how` names another reduction. Collective: all ranks must call it.
template <world_like World, class Value, reduction Reduction = reduce::max>
agreed<Value> agree(World const& world, Value const& local, Reduction how = {}) {
  return agreed<Value>(agreed<Value>::all_took_part, world.combine(how, local));
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns a function that reduces a bool to the pair (true on all ranks, true on any rank). Collective: all ranks must call that function.
/// `world` must outlive it.
template <world_like World>
auto make_all_any_reducer(World const& world) {
  return [&world](bool local) { return std::pair(world.combine(reduce::min{}, local), world.combine(reduce::max{}, local)); };
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// A value that is the same on every rank; created by keel::agree.
template <class Value>
class agreed {
 public:
  /// Rejects the value of a single rank at compile time (N26).
  template <class Raw>
    requires(!std::same_as<std::remove_cvref_t<Raw>, agreed>)
  agreed(Raw const&) : value_(detail::no_value<Value>()) {
    detail::reject_call<rule::N26, Raw>();
  }

  /// Returns the value, which is the same on all ranks.
  Value const& value() const { return value_; }
  /// True on all ranks or on none.
  explicit operator bool() const
    requires std::same_as<Value, bool>
  {
    return value_;
  }

 private:
  enum key { all_took_part };
  agreed(key, Value const& value) : value_(value) {}
  template <world_like World, class Any, reduction Reduction>
  friend agreed<Any> agree(World const& world, Any const& local, Reduction how);
  template <std::floating_point Number>
  friend std::optional<agreed<finite<Number>>> as_finite(agreed<Number> const& number);
  Value value_;
};

/// Returns the number as finite, or nullopt. Checks the reduced number, so that all ranks take the same branch. If each rank checked its
/// own number before the all-reduce, a rank with a NaN would skip it and leave the others blocked.
template <std::floating_point Number>
std::optional<agreed<finite<Number>>> as_finite(agreed<Number> const& number) {
  auto const looked_at = as_finite(number.value());
  if (!looked_at) return std::nullopt;
  return agreed<finite<Number>>(agreed<finite<Number>>::all_took_part, *looked_at);
}

}  // namespace keel::inline KEEL_MODE
