// Measures the memory peak of each phase of an update and the memory held after it, as input for the timeline.
#pragma once

#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <keel/memory/statistics.hpp>
#include <optional>

namespace keel::memory::inline KEEL_MODE {

/// Phases of an update.
enum class phase : unsigned char { forward, backward, update };
/// Number of phases.
inline constexpr std::size_t phases = 3;

/// Returns "forward", "backward" or "update".
inline char const* to_string(phase which) {
  constexpr char const* names[] = {"forward", "backward", "update"};
  return names[static_cast<std::size_t>(which)];
}

/// Memory of one update, in bytes.
struct usage {
  std::int64_t held = 0;                     ///< allocated at the end of the update, including gradients
  std::int64_t reserved = 0;                 ///< reserved from the system at the end of the update
  std::array<std::int64_t, phases> peaks{};  ///< peak of allocated bytes in each phase
  std::int64_t between = 0;                  ///< peak since the previous update: evaluations, saves, hooks, loading
  std::int64_t accumulated = 0;  ///< growth from before the first piece of a batch to before the last, including gradients
  bool is_on_gpu = false;        ///< measured on a GPU, not in host memory
  /// Returns the highest of the phases' peaks.
  std::int64_t peak() const { return *std::max_element(peaks.begin(), peaks.end()); }
  /// Returns the phase with the highest peak.
  phase highest() const { return static_cast<phase>(std::max_element(peaks.begin(), peaks.end()) - peaks.begin()); }
};

/// State of an update when memory ran out.
struct shortage {
  phase during = phase::forward;  ///< phase in which memory ran out
  std::int64_t pieces = 0;        ///< forward passes begun by the update
  usage so_far;                   ///< without the failed allocation
};

/// Receives the beginnings of phases. Costs a few atomic operations per phase if memory is counted, one if not.
class phase_watch {
 public:
  explicit phase_watch(c10::Device device) : device_(device), peak_(device) {}

  /// Begins an update. `wanted`: its usage will be read.
  void begin(bool wanted) {
    wanted_ = wanted;
    now_ = phase::forward;
    peaks_ = {};
    pieces_ = 0;
    between_ = wanted_ ? peak_.take().value_or(0) : 0;
  }
  /// Begins the phase `next`; memory since the last call counts for the previous phase.
  void enter(phase next) {
    if (!wanted_) return;
    close_phase();
    now_ = next;
    if (next != phase::forward || !wanted_) return;
    (pieces_ == 0 ? first_ : last_) = allocated_on(device_);
    if (pieces_++ == 0) last_ = first_;
  }
  /// Call if memory ran out. Returns nullopt if no update is open or memory is not counted.
  std::optional<shortage> interrupted() {
    if (!wanted_) return std::nullopt;
    close_phase();
    auto const so_far = read();
    return so_far ? std::optional(shortage{now_, pieces_, *so_far}) : std::nullopt;
  }
  /// Ends the update and returns its usage; nullopt if memory is not counted.
  std::optional<usage> end() {
    if (!wanted_) return std::nullopt;
    close_phase();
    wanted_ = false;
    return read();
  }

 private:
  std::optional<usage> read() const {
    auto const all = statistics_of(device_);
    if (!all) return std::nullopt;
    return usage{all->allocated, all->reserved, peaks_, between_, last_ - first_, !device_.is_cpu()};
  }
  void close_phase() {
    auto const peak = peak_.take();
    if (!peak) {
      wanted_ = false;
      return;
    }
    auto& highest = peaks_[static_cast<std::size_t>(now_)];
    highest = std::max(highest, *peak);
  }

  c10::Device device_;
  peak_watch peak_;
  phase now_ = phase::forward;
  bool wanted_ = false;
  std::array<std::int64_t, phases> peaks_{};
  std::int64_t between_ = 0;
  std::int64_t pieces_ = 0;
  std::int64_t first_ = 0;  ///< allocated before the first piece
  std::int64_t last_ = 0;   ///< allocated before the last piece
};

}  // namespace keel::memory::inline KEEL_MODE
