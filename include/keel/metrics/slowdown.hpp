// A run that becomes slower and stays so: a loader that falls behind, a disk that fills, a processor that another program shares or
// heat slows down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <keel/metrics/phase_times.hpp>
#include <optional>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

struct slowdown {
  double before = 0.0;  ///< milliseconds of an update, saves and evaluations apart
  double now = 0.0;
  std::optional<run_phase> phase = {};  ///< that took most of what was added; nothing: what belongs to no phase
};

/// One sentence.
std::string describe(slowdown const& found);

/// Compares the median update of the last `length` with the fastest median of as many before. Both are by token, so that longer
/// batches do not count as a slowdown.
class slowdown_watch {
 public:
  static constexpr std::size_t length = 32;
  /// Of medians, above which the run is slower; and what must be added at least, in milliseconds, so that jitter of small updates
  /// does not count.
  static constexpr double factor = 1.5;
  static constexpr double least = 5.0;
  /// The first updates carry the warm-up of threads, kernels and allocator.
  static constexpr std::int64_t left_out = 5;

  /// Says once what it found; again where the run becomes slower still.
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
    phase_times mean;  ///< of an update
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
