// The measured values of a line of the record, one row each. The keys of metrics.jsonl, the reduction over the updates of a line, the
// open line's state in a checkpoint, sinks, alarms, the report and the tables of README.md derive from the row. To add one, write
// the row and append it to `measured_metrics`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <keel/core/window_statistics.hpp>
#include <keel/metrics/metric.hpp>
#include <keel/metrics/unit.hpp>
#include <optional>
#include <type_traits>
#include <utility>

namespace keel::inline KEEL_MODE {

/// The last 128 accepted updates, the newest one included.
struct recent_updates {
  window_statistics const& losses;
  window_statistics const& gradient_norms;
};

/// Base class of the measured values. A row has a `key`, its name in metrics.jsonl, and hides the members below where it differs from
/// them. A row with `static std::optional<double> measure(recent_updates const&)` is measured by it; the run measures the others.
template <unit_of_measure Unit, over_updates OverUpdates, reduction OverRanks, reading_cost Cost = reading_cost::none>
struct measured_metric : run_metric<Unit, reduce::mean, OverUpdates, OverRanks, Cost> {
  static constexpr char const* name = nullptr;       ///< the name that sinks and alarms receive; nullptr: they do not
  static constexpr char const* title = nullptr;      ///< of its plot in a report; nullptr: none
  static constexpr bool is_null_if_unknown = false;  ///< in metrics.jsonl; an unknown value is otherwise left out
  static constexpr bool omits_zero = false;          ///< in metrics.jsonl and for sinks
  static constexpr bool depends_on_clock = false;    ///< so that a resumed run does not repeat it to the bit

  /// The weight of an update in a mean over updates.
  static double weight(std::int64_t /*tokens*/, double /*milliseconds*/) { return 1.0; }
};

namespace metrics {

/// Standard deviations of the loss from the mean of the last 128 accepted losses; null before there are 8. A deviation counts as at
/// least a hundredth of the mean.
struct loss_zscore : measured_metric<units::deviations, over_updates::farthest, reduce::mean, reading_cost::with_the_update> {
  static constexpr char const* key = "loss_zscore";
  static constexpr char const* title = "score of the loss";
  static constexpr bool is_null_if_unknown = true;
};
/// As `loss_zscore`, of the gradient norm.
struct gradient_norm_zscore
    : measured_metric<units::deviations, over_updates::farthest, reduce::max, reading_cost::with_the_update> {
  static constexpr char const* key = "gradient_norm_zscore";
  static constexpr char const* title = "score of the gradient norm";
  static constexpr bool is_null_if_unknown = true;
};
/// Share of the ids that are padding, if keel::batch_guard::padding names the padding id.
struct padding : measured_metric<units::share, over_updates::mean, reduce::mean> {
  static constexpr char const* key = "padding";
  static constexpr char const* name = "data/padding";
  static constexpr char const* title = "share of padding";
  static double weight(std::int64_t tokens, double) { return static_cast<double>(tokens); }
};
/// Share of the labels that are ignored, if there are labels.
struct ignored_labels : measured_metric<units::share, over_updates::mean, reduce::mean> {
  static constexpr char const* key = "ignored_labels";
  static constexpr char const* name = "data/ignored_labels";
  static constexpr char const* title = "share of ignored labels";
  static constexpr bool omits_zero = true;
  static double weight(std::int64_t tokens, double) { return static_cast<double>(tokens); }
};
/// Mean loss of the last 128 accepted updates.
struct smoothed_loss : measured_metric<units::one, over_updates::last, reduce::mean, reading_cost::with_the_update> {
  static constexpr char const* key = "smoothed_loss";
  static constexpr char const* name = "smoothed/loss";
  static std::optional<double> measure(recent_updates const& recent) { return recent.losses.mean(); }
};
/// Mean joint L2 norm of the last 128 accepted updates.
struct smoothed_gradient_norm : measured_metric<units::one, over_updates::last, reduce::max, reading_cost::with_the_update> {
  static constexpr char const* key = "smoothed_gradient_norm";
  static constexpr char const* name = "smoothed/grad_norm";
  static std::optional<double> measure(recent_updates const& recent) { return recent.gradient_norms.mean(); }
};
/// Model FLOPs utilization, at most 1, if `options.operations_per_token` or `trainer::count_operations` gives the operations per token.
struct mfu : measured_metric<units::share, over_updates::mean, reduce::mean> {
  static constexpr char const* key = "mfu";
  static constexpr char const* name = "train/mfu";
  static constexpr char const* title = "model FLOPs utilization";
  static constexpr bool depends_on_clock = true;
  static double weight(std::int64_t, double milliseconds) { return milliseconds; }
};

}  // namespace metrics

/// Returns the value as metrics.jsonl and sinks show it.
template <class Metric>
std::optional<double> shown_value(std::optional<double> const& value) {
  return Metric::omits_zero && value == 0.0 ? std::nullopt : value;
}

/// A value for each of `Metrics`, in their order: `values[metrics::padding{}]`.
template <class Value, class... Metrics>
class value_per_metric {
 public:
  /// Returns the value of a metric.
  template <class Metric>
  Value& operator[](Metric) {
    return values_[index_of<Metric>()];
  }
  template <class Metric>
  Value const& operator[](Metric) const {
    return values_[index_of<Metric>()];
  }
  /// Calls `visit(metric)` for each.
  template <class Visit>
  static void for_each_metric(Visit const& visit) {
    (visit(Metrics{}), ...);
  }
  /// Calls `visit(metric, value)` for each.
  template <class Visit>
  void for_each(Visit const& visit) {
    std::size_t i = 0;
    (visit(Metrics{}, values_[i++]), ...);
  }
  template <class Visit>
  void for_each(Visit const& visit) const {
    std::size_t i = 0;
    (visit(Metrics{}, values_[i++]), ...);
  }

  template <class Archive>
  void visit(Archive& archive) {
    for_each([&]<class Metric>(Metric, Value& value) { archive.optional_field(Metric::key, value); });
  }

 private:
  template <class Metric>
  static constexpr std::size_t index_of() {
    static_assert((std::is_same_v<Metric, Metrics> || ...), "the metric is not in keel::measured_metrics");
    constexpr bool is_here[] = {std::is_same_v<Metric, Metrics>...};
    std::size_t i = 0;
    while (!is_here[i]) ++i;
    return i;
  }

  std::array<Value, sizeof...(Metrics)> values_{};
};

/// The measured values, in the order of metrics.jsonl.
template <class Value>
using measured_metrics =
    value_per_metric<Value, metrics::loss_zscore, metrics::gradient_norm_zscore, metrics::padding, metrics::ignored_labels,
                     metrics::smoothed_loss, metrics::smoothed_gradient_norm, metrics::mfu>;

}  // namespace keel::inline KEEL_MODE
