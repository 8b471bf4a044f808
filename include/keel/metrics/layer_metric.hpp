// Metrics of layers and evaluations, each a type like those in run_metric.hpp. A value's name is the metric's name, a slash and
// the module's name: "grad_norm/blocks.3".
#pragma once

#include <keel/metrics/layer_record.hpp>
#include <keel/metrics/run_metric.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

namespace metrics {

// `key`: the key in layers.jsonl.

/// L2 norm of a layer's gradients, before clipping.
struct layer_gradient_norm
    : run_metric<units::one, reduce::mean, over_updates::last, reduce::max, reading_cost::some_updates_later> {
  static constexpr char const* name = "grad_norm";
  static constexpr char const* key = "grad_norm";
  static double of(layer_figures const& one) { return one.gradient_norm; }
};
/// L2 norm of a layer's parameters, after the update.
struct layer_parameter_norm
    : run_metric<units::one, reduce::max, over_updates::last, reduce::max, reading_cost::some_updates_later> {
  static constexpr char const* name = "param_norm";
  static constexpr char const* key = "param_norm";
  static double of(layer_figures const& one) { return one.parameter_norm; }
};
/// L2 norm of an update's change to a layer's parameters, divided by their L2 norm.
struct layer_update_ratio
    : run_metric<units::share, reduce::max, over_updates::last, reduce::max, reading_cost::some_updates_later> {
  static constexpr char const* name = "update_ratio";
  static constexpr char const* key = "update_ratio";
  static double of(layer_figures const& one) { return one.update_ratio; }
};
/// Mean of a unit's output in an update's first micro-batch.
struct activation_mean
    : run_metric<units::one, reduce::mean, over_updates::last, reduce::mean, reading_cost::some_updates_later> {
  static constexpr char const* name = "activation_mean";
  static constexpr char const* key = "mean";
  static double of(activation_figures const& one) { return one.mean; }
};
/// Standard deviation of a unit's output in an update's first micro-batch.
struct activation_deviation
    : run_metric<units::one, reduce::mean, over_updates::last, reduce::mean, reading_cost::some_updates_later> {
  static constexpr char const* name = "activation_std";
  static constexpr char const* key = "std";
  static double of(activation_figures const& one) { return one.deviation; }
};

/// The first value of an evaluation if it is unnamed.
struct evaluation_loss : run_metric<units::one, reduce::mean, over_updates::last, reduce::mean, reading_cost::none> {
  static constexpr char const* name = "loss";
};
/// exp of a mean cross-entropy in nats.
struct evaluation_perplexity : run_metric<units::one, reduce::mean, over_updates::last, reduce::mean, reading_cost::none> {
  static constexpr char const* name = "perplexity";
};

}  // namespace metrics

/// The metrics of a layer.
using layer_metrics = run_metric_list<metrics::layer_gradient_norm, metrics::layer_parameter_norm, metrics::layer_update_ratio>;
/// The metrics of a keel::unit.
using activation_metrics = run_metric_list<metrics::activation_mean, metrics::activation_deviation>;

/// Calls `visit(metric, figures)` for each metric of one layer or one unit.
template <class Visit, class... Metrics, class Figures>
void for_each_metric_of(run_metric_list<Metrics...>, Figures const& figures, Visit const& visit) {
  (visit(Metrics{}, figures), ...);
}
/// Calls `visit(name, value)` for each value of a layer record, with the names that sinks receive.
template <class Visit>
void for_each_value(layer_record const& record, Visit const& visit) {
  auto const named = [&](auto metric, auto const& figures) {
    visit(std::string(metric.name) + '/' + figures.name, metric.of(figures));
  };
  for (layer_figures const& one : record.layers) for_each_metric_of(layer_metrics{}, one, named);
  for (activation_figures const& one : record.activations) for_each_metric_of(activation_metrics{}, one, named);
}

/// Returns the prefix of the names of an evaluation's values.
inline std::string evaluation_group(std::string const& evaluation) {
  return evaluation.empty() ? "eval/" : "eval/" + evaluation + "/";
}

}  // namespace keel::inline KEEL_MODE
