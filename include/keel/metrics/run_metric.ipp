// The bodies of run_metric.hpp.
#pragma once

#include <keel/metrics/run_metric.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

template <class... Metrics>
void add_named_values(run_metric_list<Metrics...>, update_metrics const& m, std::vector<named_value>& to) {
  auto const add = [&](char const* name, std::optional<double> const& value) {
    if (value) to.push_back({name, *value});
  };
  (add(Metrics::name, Metrics::of(m)), ...);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<named_value> named_values(update_metrics const& m) {
  std::vector<named_value> values;
  detail::add_named_values(run_metrics{}, m, values);
  for (auto const& [name, value] : m.own) values.push_back({name, value});
  return values;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
