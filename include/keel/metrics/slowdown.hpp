// Detects a run that becomes slower and stays slow: a loader that cannot keep up, a disk that is full, a processor that is shared with
// another program or throttled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <keel/metrics/phase_times.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

struct slowdown {
  double before = 0.0;  ///< milliseconds per update, without saves and evaluations
  double now = 0.0;
  std::optional<run_phase> phase = {};  ///< the phase with the largest increase; nullopt: most of it is outside of any phase
};

/// Describes the slowdown in one sentence.
std::string describe(slowdown const& found);

/// Compares the median time of the last `length` updates with the fastest such median before. Both are per token, so that longer batches do
/// not count as a slowdown.
class slowdown_watch {
 public:
  static constexpr std::size_t length = 32;
  /// Thresholds of a slowdown: the ratio of the medians, and the smallest increase in milliseconds, so that the jitter of short updates
  /// does not count.
  static constexpr double factor = 1.5;
  static constexpr double least = 5.0;
  /// Number of first updates that are ignored, because they include the warm-up of threads, kernels and allocator.
  static constexpr std::int64_t left_out = 5;

  /// Adds an update. Returns a slowdown when it is first detected, and again if the run becomes even slower.
  std::optional<slowdown> add(phase_times const& times, std::int64_t tokens);

 private:
  struct update {
    double milliseconds = 0.0;
    double per_token = 0.0;
    phase_times times;
    std::int64_t tokens = 0;
  };
  struct level {
    double milliseconds = 0.0;
    double per_token = 0.0;
    phase_times mean;  ///< times per update
  };
  level level_now() const;

  std::int64_t seen_ = 0;
  std::size_t next_ = 0;
  std::vector<update> last_;
  std::optional<level> fastest_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/slowdown.ipp>
#endif
