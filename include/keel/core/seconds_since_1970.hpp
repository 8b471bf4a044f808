// The timestamps of records and events.
#pragma once

#include <chrono>
#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace keel::detail::inline KEEL_MODE
