// Definitions for run_metric.hpp.
#pragma once

#include <keel/metrics/run_metric.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::vector<named_value> named_values(update_metrics const& m) {
  std::vector<named_value> values;
  for_each_value(m, [&](std::string_view name, double value) { values.push_back({std::string(name), value}); });
  return values;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
