// The clock of a run, for cadences, timers and phases.
#pragma once

#include <chrono>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

/// The steady clock of this machine. Tests derive from it and pass their own.
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

/// Returns the clock of this machine. Thread-safe.
inline time_source const& real_time() {
  static time_source const time;
  return time;
}

}  // namespace keel::inline KEEL_MODE
