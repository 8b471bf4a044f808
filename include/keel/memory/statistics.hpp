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
#include <keel/memory/counting_allocator.hpp>
#include <optional>

namespace keel::memory {

/// In bytes.
struct statistics {
  std::int64_t allocated = 0;  ///< held by tensors
  std::int64_t peak = 0;       ///< the most of them since the peak was reset
  std::int64_t reserved = 0;   ///< taken from the system: by the caching allocator, or on the CPU resident in the process
  std::int64_t retries = 0;    ///< times that the caching allocator had to give its cache back to find room; 0 on the CPU
  std::int64_t refused = 0;    ///< allocations that failed
};

namespace detail {

/// Bytes of this process that are in memory; 0 where the system does not say.
inline std::int64_t resident() {
  // Not a stream, whose descriptor a child process would inherit.
  int const file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[128] = {};
  ssize_t const count = ::read(file, text, sizeof text - 1);
  ::close(file);
  long long pages = 0;
  long long in_memory = 0;
  bool const is_read = count > 0 && std::sscanf(text, "%lld %lld", &pages, &in_memory) == 2;
  return is_read ? in_memory * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace detail

/// Nothing where memory is not counted: on the CPU without a budget, or on a device whose allocator this LibTorch does not show.
inline std::optional<statistics> statistics_of(c10::Device device) {
  if (!device.is_cpu()) {
    auto const shown = libtorch::device_memory_of(device);
    if (!shown) return std::nullopt;
    return statistics{shown->allocated, shown->peak, shown->reserved, shown->retries, shown->refused};
  }
  auto const& counts = detail::process_counts::instance();
  if (!counts.counting) return std::nullopt;
  return statistics{counts.allocated, counts.peaks[0], detail::resident(), 0, counts.refused};
}

/// The peak between two of its readings. On a GPU the allocator has one peak for all, which a reading resets.
class peak_watch {
 public:
  explicit peak_watch(c10::Device device) : device_(device) {
    if (!device_.is_cpu()) return;
    auto& counts = detail::process_counts::instance();
    unsigned taken = counts.watched;
    do {
      place_ = static_cast<unsigned>(std::countr_one(taken));
      if (place_ >= detail::process_counts::watches) return;  // too many watch already; this one sees nothing
    } while (!counts.watched.compare_exchange_weak(taken, taken | 1U << place_));
  }
  peak_watch(peak_watch const&) = delete;
  peak_watch& operator=(peak_watch const&) = delete;
  ~peak_watch() {
    if (device_.is_cpu() && place_ < detail::process_counts::watches)
      detail::process_counts::instance().watched &= ~(1U << place_);
  }

  /// The most bytes allocated since the last call; nothing where memory is not counted.
  std::optional<std::int64_t> take() {
    if (!device_.is_cpu()) return libtorch::take_device_peak(device_);
    auto& counts = detail::process_counts::instance();
    if (!counts.counting.load(std::memory_order_relaxed) || place_ >= detail::process_counts::watches) return std::nullopt;
    return counts.peaks[place_].exchange(counts.allocated);
  }

 private:
  c10::Device device_;
  unsigned place_ = detail::process_counts::watches;
};

}  // namespace keel::memory
