// How much memory each phase of an update took at most, and what it left behind: what a timeline is made of.
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

/// Of an update.
enum class phase : unsigned char { forward, backward, update };
/// How many phases there are.
inline constexpr std::size_t phases = 3;

/// "forward", "backward" or "update".
inline char const* to_string(phase which) {
  constexpr char const* names[] = {"forward", "backward", "update"};
  return names[static_cast<std::size_t>(which)];
}

/// One update of micro-batches, in bytes.
struct usage {
  std::int64_t held = 0;                     ///< allocated at its end, gradients included
  std::int64_t reserved = 0;                 ///< taken from the system at its end
  std::array<std::int64_t, phases> peaks{};  ///< allocated at most while the phase ran
  std::int64_t between = 0;                  ///< allocated at most since the update before: evaluations, saves, hooks, loading
  std::int64_t accumulated = 0;  ///< held before its last piece of a batch more than before its first, gradients included
  bool is_on_gpu = false;        ///< and not in the host's memory
  /// The highest of the phases' peaks.
  std::int64_t peak() const { return *std::max_element(peaks.begin(), peaks.end()); }
  /// The phase of the highest peak.
  phase highest() const { return static_cast<phase>(std::max_element(peaks.begin(), peaks.end()) - peaks.begin()); }
};

/// Where an update stood when memory ran out.
struct shortage {
  phase during = phase::forward;  ///< the phase in which it ran out
  std::int64_t pieces = 0;        ///< forward passes that the update had begun
  usage so_far;                   ///< what failed is not in it
};

/// Called where phases begin. Costs a few atomic operations a phase where memory is counted, and one where it is not.
class phase_watch {
 public:
  explicit phase_watch(c10::Device device) : device_(device), peak_(device) {}

  /// An update begins. `wanted`: what it took will be read.
  void begin(bool wanted) {
    wanted_ = wanted;
    now_ = phase::forward;
    peaks_ = {};
    pieces_ = 0;
    between_ = wanted_ ? peak_.take().value_or(0) : 0;
  }
  /// What was since the last call belongs to the phase before.
  void enter(phase next) {
    if (!wanted_) return;
    close_phase();
    now_ = next;
    if (next != phase::forward || !wanted_) return;
    (pieces_ == 0 ? first_ : last_) = allocated_on(device_);
    if (pieces_++ == 0) last_ = first_;
  }
  /// Memory ran out; nothing where no update is open or memory is not counted.
  std::optional<shortage> interrupted() {
    if (!wanted_) return std::nullopt;
    close_phase();
    auto const so_far = read();
    return so_far ? std::optional(shortage{now_, pieces_, *so_far}) : std::nullopt;
  }
  /// The update ends; nothing where memory is not counted.
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
  std::int64_t first_ = 0;  ///< held before the first piece
  std::int64_t last_ = 0;   ///< held before the last one
};

}  // namespace keel::memory::inline KEEL_MODE
