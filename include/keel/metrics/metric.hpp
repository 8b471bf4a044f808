// User-defined metrics: a name, and as types the reduction over ranks, the unit, and the reduction over the updates of an interval. Only
// reduced values can be logged, so one rank's value cannot be recorded as the run's (Y01). A metric without a reduction over ranks does not
// compile (Y02).
//     keel::metric<keel::reduce::mean> accuracy{"accuracy"};
//     keel::metric<keel::reduce::sum, keel::units::bytes> received{"received"};
//     run.log(accuracy.reduced(keel::world_of_one{}, 0.93));
#pragma once

#include <keel/collective/world.hpp>
#include <keel/metrics/unit.hpp>
#include <keel/rule/metric.hpp>
#include <keel/rule/reject_call.hpp>
#include <string>
#include <type_traits>
#include <utility>

namespace keel::inline KEEL_MODE {

/// The reduction over several updates. `farthest` is the value farthest from 0.
enum class over_updates : unsigned char { mean, sum, min, max, last, farthest };

/// The cost of reading a value on the host.
enum class reading_cost : unsigned char {
  none,               ///< the host already has the value
  with_the_update,    ///< read together with the update's decision, in the same synchronization
  some_updates_later  ///< copied from the device asynchronously; the host waits only at the end of the run
};

/// Base class of the metrics that a run measures itself (run_metric.hpp).
template <unit_of_measure Unit, reduction OverMicroBatches, over_updates OverUpdates, reduction OverRanks, reading_cost Cost>
struct run_metric {
  using unit = Unit;                                               ///< the unit
  using over_micro_batches = OverMicroBatches;                     ///< the reduction over an update's micro-batches
  static constexpr keel::over_updates over_updates = OverUpdates;  ///< the reduction over updates
  using over_ranks = OverRanks;                                    ///< the reduction over ranks
  static constexpr reading_cost cost = Cost;                       ///< the cost of reading it
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// The default reduction over updates: the same as over ranks.
template <class Reduction>
constexpr over_updates as_over_ranks() {
  if constexpr (std::is_same_v<Reduction, reduce::sum>) return over_updates::sum;
  if constexpr (std::is_same_v<Reduction, reduce::min>) return over_updates::min;
  if constexpr (std::is_same_v<Reduction, reduce::max>) return over_updates::max;
  return over_updates::mean;
}
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// A value that was reduced over all ranks, with its metric's properties.
class reduced_value {
 public:
  /// Returns the metric's name.
  std::string const& name() const { return name_; }
  /// Returns the value, reduced over all ranks.
  double value() const { return value_; }
  /// Returns the name of the metric's unit.
  char const* unit() const { return unit_; }
  /// Returns the reduction over several updates.
  over_updates over() const { return over_; }

 private:
  template <class Reduction, unit_of_measure Unit, over_updates Over>
  friend class metric;
  reduced_value(std::string name, double value, char const* unit, over_updates over)
      : name_(std::move(name)), value_(value), unit_(unit), over_(over) {}
  std::string name_;
  double value_;
  char const* unit_;
  over_updates over_;
};

/// A user-defined metric. The template arguments are its reduction over ranks, its unit, and its reduction over updates.
template <class Reduction = void, unit_of_measure Unit = units::one, over_updates Over = detail::as_over_ranks<Reduction>()>
class metric {
 public:
  explicit metric(std::string name) : name_(std::move(name)) {
    if constexpr (!reduction<Reduction>) detail::reject_call<rule::Y02, metric>();
  }

  /// Reduces the value over ranks. Collective: all ranks of the world must call it. A single process communicates nothing.
  template <world_like World>
  reduced_value reduced(World const& world, double mine) const {
    if constexpr (reduction<Reduction>) {
      return {name_, world.combine(Reduction{}, mine), Unit::name, Over};
    } else {
      return {name_, mine, Unit::name, Over};
    }
  }

 private:
  std::string name_;
};

}  // namespace keel::inline KEEL_MODE
