// Your own metric: a name and the rule how ranks combine. What is logged is the combined value, so one rank's number
// cannot stand under the run's name (Y01), and a metric without a rule does not compile (Y02).
//     keel::metric<keel::reduce::mean> accuracy{"accuracy"};
//     run.log(accuracy.reduced(keel::world_of_one{}, 0.93));
#pragma once

#include <keel/collective/world.hpp>
#include <keel/rule/metric.hpp>
#include <keel/rule/reject_call.hpp>
#include <string>
#include <utility>

namespace keel {

/// A value that all ranks combined, with its name.
class reduced_value {
 public:
  std::string const& name() const { return name_; }
  double value() const { return value_; }

 private:
  template <class Reduction>
  friend class metric;
  reduced_value(std::string name, double value) : name_(std::move(name)), value_(value) {}
  std::string name_;
  double value_;
};

template <class Reduction = void>
class metric {
 public:
  explicit metric(std::string name) : name_(std::move(name)) {
    if constexpr (!reduction<Reduction>) detail::reject_call<rule::Y02, metric>();
  }

  /// The ranks' values as one. A process alone needs no collective; all ranks of a larger world must call it.
  template <world_like World>
  reduced_value reduced(World const& world, double mine) const {
    if constexpr (reduction<Reduction>) {
      return {name_, world.combine(Reduction{}, mine)};
    } else {
      return {name_, mine};
    }
  }

 private:
  std::string name_;
};

}  // namespace keel
