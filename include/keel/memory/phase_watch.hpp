// How much memory each phase of an update took at most, and what it left behind: what a timeline is made of.
#pragma once

#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <keel/memory/statistics.hpp>
#include <optional>

namespace keel::memory {

enum class phase : unsigned char { forward, backward, update };
inline constexpr std::size_t phases = 3;

inline char const* to_string(phase which) {
  constexpr char const* names[] = {"forward", "backward", "update"};
  return names[static_cast<std::size_t>(which)];
}

/// One update of micro-batches, in bytes.
struct usage {
  std::int64_t held = 0;                     ///< allocated at its end, gradients included
  std::int64_t reserved = 0;                 ///< taken from the system at its end
  std::array<std::int64_t, phases> peaks{};  ///< allocated at most while the phase ran
  bool is_on_gpu = false;                    ///< and not in the host's memory
  std::int64_t peak() const { return *std::max_element(peaks.begin(), peaks.end()); }
  /// The phase of the highest peak.
  phase highest() const { return static_cast<phase>(std::max_element(peaks.begin(), peaks.end()) - peaks.begin()); }
};

/// Called where phases begin. Costs two atomic operations a phase where memory is counted, and one where it is not.
class phase_watch {
 public:
  explicit phase_watch(c10::Device device) : device_(device), peak_(device) {}

  /// An update begins. `wanted`: what it took will be read.
  void begin(bool wanted) {
    wanted_ = wanted;
    now_ = phase::forward;
    peaks_ = {};
    if (wanted_) peak_.take();
  }
  /// What was since the last call belongs to the phase before.
  void enter(phase next) {
    if (!wanted_) return;
    close_phase();
    now_ = next;
  }
  /// The update ends; nothing where memory is not counted.
  std::optional<usage> end() {
    if (!wanted_) return std::nullopt;
    close_phase();
    wanted_ = false;
    auto const all = statistics_of(device_);
    if (!all) return std::nullopt;
    return usage{all->allocated, all->reserved, peaks_, !device_.is_cpu()};
  }

 private:
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
};

}  // namespace keel::memory
