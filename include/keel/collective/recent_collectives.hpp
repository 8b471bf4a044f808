// A ring buffer of the last collectives of a world, for diagnosis after a rank hung or ended (compare NCCL's flight recorder).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <mutex>
#include <string>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

struct recent_collective {
  std::int64_t sequence = 0;
  char const* operation = "";  ///< a literal
  std::int64_t elements = 0;
  std::int64_t update = 0;  ///< number of updates completed before it
  double time = 0.0;        ///< seconds since 1970
  bool is_completed = false;
};

/// Thread-safe: written by the thread that calls collectives; can be read from any thread.
class recent_collectives {
 public:
  /// Sets the number of completed updates that is recorded with each following collective.
  void set_current_update(std::int64_t updates);
  void began(std::int64_t sequence, char const* operation, std::int64_t elements);
  void mark_completed(std::int64_t sequence);
  /// Returns the recorded collectives, oldest first.
  std::vector<recent_collective> all() const;

 private:
  static constexpr std::size_t kept = 64;
  recent_collective& at(std::int64_t sequence) { return last_[static_cast<std::size_t>(sequence) % kept]; }

  mutable std::mutex mutex_;
  std::array<recent_collective, kept> last_{};
  std::int64_t updates_ = 0;
};

/// Describes the oldest incomplete collective, such as "it is in collective 345, all_reduce of 1200 elements ..", or else the last one.
/// Empty if there is none.
std::string describe_current_collective(std::vector<recent_collective> const& all);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/recent_collectives.ipp>
#endif
