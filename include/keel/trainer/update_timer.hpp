// Measures the duration of updates, including those whose end the host observes one update later.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <keel/core/time_source.hpp>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

class update_timer {
 public:
  /// `time` must outlive this object.
  explicit update_timer(time_source const& time) : time_(time) {}

  struct reading {
    std::int64_t epoch;
    double milliseconds;
  };

  void begin_run() { began_ = ended_ = time_.now(); }
  /// Duration of the longest update so far, in milliseconds. Excludes the first one, which includes one-time setup.
  double slowest() const { return slowest_; }
  void begin_update(std::int64_t epoch) {
    began_ = time_.now();
    epoch_before_ = epoch_;
    epoch_ = epoch;
  }
  /// Returns the epoch and duration of the update that ended. `is_next_update_open`: the next update is already open; the duration is then
  /// measured from the previous end.
  reading end_update(bool is_next_update_open) {
    auto const now = time_.now();
    std::chrono::duration<double, std::milli> const taken = now - (is_next_update_open ? ended_ : began_);
    ended_ = now;
    if (ends_++ > 0) slowest_ = std::max(slowest_, taken.count());
    return {is_next_update_open ? epoch_before_ : epoch_, taken.count()};
  }

 private:
  time_source const& time_;
  std::int64_t epoch_ = 0;
  std::int64_t epoch_before_ = 0;
  std::int64_t ends_ = 0;
  double slowest_ = 0.0;
  time_source::time_point began_{};
  time_source::time_point ended_{};
};

}  // namespace keel::inline KEEL_MODE
