// The figures of an update, or of the updates of an interval, and the file that keeps them: metrics.jsonl, one JSON object a line. README.md in this folder lists
// the keys.
#pragma once

#include <cstdint>
#include <keel/memory/phase_watch.hpp>
#include <keel/metrics/gpu_state.hpp>
#include <keel/metrics/phase_times.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A line of the record.
struct update_metrics {
  std::int64_t updates = 1;                    ///< that this is about, the skipped ones included
  std::int64_t applied = 1;                    ///< of these
  std::int64_t update = 0;                     ///< updates applied so far
  std::int64_t attempt = 0;                    ///< updates so far, the skipped ones included
  std::int64_t epoch = 0;                      ///< that the data is in
  double loss = 0.0;                           ///< weighted mean
  std::optional<double> loss_zscore;           ///< standard deviations from the recent losses; nothing before there are some
  double gradient_norm = 0.0;                  ///< before clipping
  bool clipped = false;                        ///< at least once
  double clip_fraction = 0.0;                  ///< of the applied ones
  std::optional<double> gradient_norm_zscore;  ///< as that of the loss
  double learning_rate = 0.0;                  ///< of the first parameter group
  double loss_scale = 1.0;                     ///< factor on the loss
  std::int64_t skipped = 0;                    ///< in the whole run
  std::int64_t rollbacks = 0;                  ///< in the whole run
  std::int64_t rungs = 0;                      ///< of the ladder, taken in the whole run
  std::optional<double> smoothed_loss = {};    ///< mean of the last 128 accepted ones
  std::optional<double> smoothed_gradient_norm = {};  ///< the same
  std::string skipped_because;                        ///< empty for an update that was applied
  std::int64_t tokens = 0;                            ///< of all micro-batches, or rows
  double milliseconds = 0.0;                          ///< wall-clock
  phase_times times;                                  ///< where they went
  std::optional<double> padding = {};                 ///< share of the ids that fill rows
  std::optional<double> ignored_labels = {};          ///< share of the labels that count for nothing
  std::uint64_t batch = 0;                            ///< checksum of its micro-batches; 0 where nothing read them
  std::optional<gpu_state> gpu = {};                  ///< what the driver said last
  std::optional<double> mfu = {};                     ///< model FLOP utilisation (keel/metrics/operation_count.hpp), 1 at most
  std::optional<memory::usage> memory;                ///< where memory is counted
  std::vector<std::pair<std::string, double>> own;    ///< what the program logged, in its order
};

/// An ordered object (nlohmann/json.hpp), so that lines are comparable as text.
nlohmann::ordered_json to_json(update_metrics const& m);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/update_metrics.ipp>
#endif
