// Memory statistics of a device under common names. On the CPU they are the counts of a keel::memory::budget, if the process
// has one. On a GPU they are those of LibTorch's caching allocator (LibTorch 2.9 or later, which has a common interface for all
// devices).
#pragma once

#include <c10/core/Device.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/mode.hpp>
#include <keel/memory/counting_allocator.hpp>
#include <optional>

namespace keel::memory::inline KEEL_MODE {

/// Memory statistics; sizes in bytes.
struct statistics {
  std::int64_t allocated = 0;  ///< held by tensors
  std::int64_t peak = 0;       ///< peak of `allocated` since the last reset
  std::int64_t reserved = 0;   ///< reserved from the system: by the caching allocator; on the CPU, resident in the process
  std::int64_t retries = 0;    ///< times that the caching allocator had to free its cache to find room; 0 on the CPU
  std::int64_t refused = 0;    ///< number of failed allocations
};

}  // namespace keel::memory::inline KEEL_MODE

namespace keel::memory::detail::inline KEEL_MODE {

/// Returns the resident size of this process in bytes; 0 if the system does not report it.
std::int64_t resident();

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

/// Returns nullopt if memory is not counted: on the CPU without a budget, or on a device whose allocator this LibTorch does not
/// expose.
std::optional<statistics> statistics_of(c10::Device device);

/// Returns the bytes held by tensors; 0 if memory is not counted.
std::int64_t allocated_on(c10::Device device);

/// Measures the peak between two calls of take(). On a GPU all users share the allocator's single peak, which take() resets.
class peak_watch {
 public:
  /// Begins with the memory that is allocated now.
  explicit peak_watch(c10::Device device);
  peak_watch(peak_watch const&) = delete;
  peak_watch& operator=(peak_watch const&) = delete;
  ~peak_watch() {
    if (device_.is_cpu() && place_ < detail::process_counts::watches)
      detail::process_counts::instance().watched &= ~(1U << place_);
  }

  /// Returns the peak of allocated bytes since the last call; nullopt if memory is not counted.
  std::optional<std::int64_t> take();

 private:
  c10::Device device_;
  unsigned place_ = detail::process_counts::watches;
};

}  // namespace keel::memory::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/memory/statistics.ipp>
#endif
