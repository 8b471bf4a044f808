// Your own metric: a name, and as types how ranks combine, what it is measured in, and how the values of several updates become one
// where the record has an interval. What is logged is the combined value, so one rank's number cannot stand under the run's name
// (Y01), and a metric that does not say how ranks combine does not compile (Y02).
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

/// How the values of several updates become one.
enum class over_updates : unsigned char { mean, sum, min, max, last };

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {
/// As ranks combine, unless the metric says otherwise.
template <class Reduction>
constexpr over_updates as_over_ranks() {
  if constexpr (std::is_same_v<Reduction, reduce::sum>) return over_updates::sum;
  if constexpr (std::is_same_v<Reduction, reduce::min>) return over_updates::min;
  if constexpr (std::is_same_v<Reduction, reduce::max>) return over_updates::max;
  return over_updates::mean;
}
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// A value that all ranks combined, with what its metric says of it.
class reduced_value {
 public:
  /// The metric's.
  std::string const& name() const { return name_; }
  /// Of all ranks.
  double value() const { return value_; }
  /// The name of the metric's unit.
  char const* unit() const { return unit_; }
  /// How the values of several updates become one.
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

/// A metric of your own, by the types of its reduction over ranks, its unit, and its reduction over updates.
template <class Reduction = void, unit_of_measure Unit = units::one, over_updates Over = detail::as_over_ranks<Reduction>()>
class metric {
 public:
  explicit metric(std::string name) : name_(std::move(name)) {
    if constexpr (!reduction<Reduction>) detail::reject_call<rule::Y02, metric>();
  }

  /// The ranks' values as one. A process alone needs no collective; all ranks of a larger world must call it.
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
