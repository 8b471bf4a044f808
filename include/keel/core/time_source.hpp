// The clock of a run: what cadences, timers and phases count by.
#pragma once

#include <chrono>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

/// The steady clock of this machine. A test derives from it and hands in its own.
class time_source {
 public:
  using duration = std::chrono::steady_clock::duration;
  using time_point = std::chrono::steady_clock::time_point;

  time_source() = default;
  time_source(time_source const&) = default;
  time_source& operator=(time_source const&) = default;
  virtual ~time_source() = default;
  virtual time_point now() const { return std::chrono::steady_clock::now(); }
};

/// That of this machine, for any thread.
inline time_source const& real_time() {
  static time_source const time;
  return time;
}

}  // namespace keel::inline KEEL_MODE
