// Converts an update_end event into a line of the record, and updates the record's statistics.
#pragma once

#include <cstdint>
#include <keel/metrics/update_metrics.hpp>
#include <keel/step/update_events.hpp>
#include <keel/trainer/progress.hpp>
#include <optional>
#include <string>

namespace keel::inline KEEL_MODE {

/// Adds the update to the record's counters and statistics, and returns its metrics. Z-scores are relative to the history before this
/// update. Only applied updates enter that history.
inline update_metrics record_metrics(event::update_end const& event, run_record& record, std::int64_t epoch) {
  update_metrics m;
  m.update = event.update;
  m.attempt = ++record.attempts;
  m.epoch = epoch;
  m.loss = event.loss;
  m.measured[metrics::loss_zscore{}] = record.loss.zscore(as_finite(event.loss));
  m.gradient_norm = event.gradient_norm;
  m.measured[metrics::gradient_norm_zscore{}] = record.gradient_norm.zscore(as_finite(event.gradient_norm));
  m.tokens = event.tokens;
  m.memory = event.memory;
  m.times = event.times;
  record.tokens += event.tokens;
  if (event.result.is<result::updated>()) {
    m.clipped = event.result.get<result::updated>().clipped;
    m.clip_fraction = m.clipped ? 1.0 : 0.0;
    record.loss.push(accepted(event.result, event.loss));
    record.gradient_norm.push(accepted(event.result, event.gradient_norm));
    if (event.update == 1) record.first_loss = event.loss;
    record.last_loss = event.loss;
  } else {
    m.applied = 0;
    auto const& skipped = event.result.get<result::skipped>();
    m.skipped_because = to_string(skipped.why);
    if (!skipped.where.empty()) m.skipped_because += " in " + skipped.where;
  }
  recent_updates const recent{record.loss, record.gradient_norm};
  m.measured.for_each([&]<class Metric>(Metric, std::optional<double>& value) {
    if constexpr (requires { Metric::measure(recent); }) value = Metric::measure(recent);
  });
  m.rungs = record.rungs;
  return m;
}

}  // namespace keel::inline KEEL_MODE
