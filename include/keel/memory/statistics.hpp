// What memory a device holds, under the same names everywhere: on the CPU the counts of a keel::memory::budget, where the
// process has one; on a GPU those of LibTorch's caching allocator (LibTorch 2.9 or later, whose interface is the same for all
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

/// In bytes.
struct statistics {
  std::int64_t allocated = 0;  ///< held by tensors
  std::int64_t peak = 0;       ///< the most of them since the peak was reset
  std::int64_t reserved = 0;   ///< taken from the system: by the caching allocator, or on the CPU resident in the process
  std::int64_t retries = 0;    ///< times that the caching allocator had to give its cache back to find room; 0 on the CPU
  std::int64_t refused = 0;    ///< allocations that failed
};

}  // namespace keel::memory::inline KEEL_MODE

namespace keel::memory::detail::inline KEEL_MODE {

/// Bytes of this process that are in memory; 0 where the system does not say.
std::int64_t resident();

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

/// Nothing where memory is not counted: on the CPU without a budget, or on a device whose allocator this LibTorch does not show.
std::optional<statistics> statistics_of(c10::Device device);

/// Bytes that tensors hold; 0 where memory is not counted.
std::int64_t allocated_on(c10::Device device);

/// The peak between two of its readings. On a GPU the allocator has one peak for all, which a reading resets.
class peak_watch {
 public:
  /// Begins with what is held now.
  explicit peak_watch(c10::Device device);
  peak_watch(peak_watch const&) = delete;
  peak_watch& operator=(peak_watch const&) = delete;
  ~peak_watch() {
    if (device_.is_cpu() && place_ < detail::process_counts::watches)
      detail::process_counts::instance().watched &= ~(1U << place_);
  }

  /// The most bytes allocated since the last call; nothing where memory is not counted.
  std::optional<std::int64_t> take();

 private:
  c10::Device device_;
  unsigned place_ = detail::process_counts::watches;
};

}  // namespace keel::memory::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/memory/statistics.ipp>
#endif
