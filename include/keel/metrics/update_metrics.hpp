// The record of an update or of an interval of updates, and its file metrics.jsonl: one JSON object per line. README.md in this
// folder lists the keys.
#pragma once

#include <cstdint>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/gpu_state.hpp>
#include <keel/metrics/measured_metric.hpp>
#include <keel/metrics/phase_times.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A line of the record.
struct update_metrics {
  std::int64_t updates = 1;                          ///< number of updates in this line, including skipped ones
  std::int64_t applied = 1;                          ///< number of these that were applied
  std::int64_t update = 0;                           ///< updates applied so far
  std::int64_t attempt = 0;                          ///< updates attempted so far, including skipped ones
  std::int64_t epoch = 0;                            ///< the epoch of the data
  double loss = 0.0;                                 ///< weighted mean
  double gradient_norm = 0.0;                        ///< before clipping
  bool clipped = false;                              ///< whether at least one update was clipped
  double clip_fraction = 0.0;                        ///< share of the applied updates
  double learning_rate = 0.0;                        ///< of the first parameter group
  double loss_scale = 1.0;                           ///< factor on the loss
  std::int64_t skipped = 0;                          ///< in the whole run
  std::int64_t rollbacks = 0;                        ///< in the whole run
  std::int64_t rungs = 0;                            ///< rungs of the ladder taken in the whole run
  std::string skipped_because;                       ///< the reason; empty for an applied update
  std::int64_t tokens = 0;                           ///< of all micro-batches; rows if batches have no tokens
  double milliseconds = 0.0;                         ///< wall-clock time
  phase_times times;                                 ///< the times of the phases
  std::uint64_t batch = 0;                           ///< checksum of the micro-batches; 0 if not computed
  measured_metrics<std::optional<double>> measured;  ///< the values of measured_metric.hpp
  std::optional<gpu_state> gpu = {};                 ///< the driver's latest values
  std::optional<memory::usage> memory;               ///< if memory is measured
  std::vector<std::pair<std::string, double>> own;   ///< values that the program logged, in order
};

/// Converts to an ordered JSON object (nlohmann/json.hpp), so that lines can be compared as text.
nlohmann::ordered_json to_json(update_metrics const& m);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/update_metrics.ipp>
#endif
