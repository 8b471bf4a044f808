// Detects the rank for which the others wait. All ranks run at the speed of the slowest, so step times alone do not show which rank is
// slow.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <keel/collective/world_of_ranks.hpp>
#include <optional>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Times of the ranks in one update: milliseconds of work from one agreement to the next, without waiting for other ranks.
struct rank_timing {
  int slowest = 0;
  double slowest_ms = 0.0;
  double others_ms = 0.0;  ///< median of the others; 0: there are none
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

inline rank_timing summarize_rank_times(std::vector<double> milliseconds) {
  rank_timing found;
  auto const last = std::max_element(milliseconds.begin(), milliseconds.end());
  if (last == milliseconds.end()) return found;
  found.slowest = static_cast<int>(last - milliseconds.begin());
  found.slowest_ms = *last;
  milliseconds.erase(last);
  if (milliseconds.empty()) return found;
  auto const middle = milliseconds.begin() + static_cast<std::ptrdiff_t>(milliseconds.size() / 2);
  std::nth_element(milliseconds.begin(), middle, milliseconds.end());
  found.others_ms = *middle;
  return found;
}

/// Measures the time that a rank works, without waiting for other ranks.
class busy_time {
 public:
  explicit busy_time(world_of_ranks const& world) : waited_(world.waited()) {}
  /// Returns the milliseconds of work since the last call, or since construction.
  double take(world_of_ranks const& world) {
    auto const now = clock::now();
    auto const busy = now - taken_at_ - (world.waited() - waited_);
    taken_at_ = now;
    waited_ = world.waited();
    return std::chrono::duration<double, std::milli>(busy).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point taken_at_ = clock::now();
  clock::duration waited_;
};

/// Reports a rank once when it has been the slowest by more than `factor` for `updates` updates in a row. Reports again for another rank,
/// or after an interruption.
class straggler_watch {
 public:
  static constexpr std::int64_t updates = 20;
  static constexpr double factor = 1.5;

  std::optional<rank_timing> take(rank_timing const& now) {
    bool const is_slow = now.others_ms > 0.0 && now.slowest_ms > factor * now.others_ms;
    if (!is_slow || now.slowest != rank_) consecutive_ = 0;
    rank_ = is_slow ? now.slowest : -1;
    if (!is_slow || ++consecutive_ != updates) return std::nullopt;
    return now;
  }

 private:
  int rank_ = -1;
  std::int64_t consecutive_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE
