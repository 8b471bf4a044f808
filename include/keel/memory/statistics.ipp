// Definitions for statistics.hpp.
#pragma once

#include <keel/memory/statistics.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::memory::detail::inline KEEL_MODE {

KEEL_BODY std::int64_t resident() {
  // Not a std::ifstream, whose descriptor a child process would inherit.
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

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

KEEL_BODY std::optional<statistics> statistics_of(c10::Device device) {
  if (!device.is_cpu()) {
    auto const shown = libtorch::device_memory_of(device);
    if (!shown) return std::nullopt;
    return statistics{shown->allocated, shown->peak, shown->reserved, shown->retries, shown->refused};
  }
  auto const& counts = detail::process_counts::instance();
  if (!counts.counting) return std::nullopt;
  return statistics{counts.allocated, counts.peaks[0], detail::resident(), 0, counts.refused};
}

KEEL_BODY std::int64_t allocated_on(c10::Device device) {
  if (device.is_cpu()) return detail::process_counts::instance().allocated.load(std::memory_order_relaxed);
  auto const shown = libtorch::device_memory_of(device);
  return shown ? shown->allocated : 0;
}

KEEL_BODY peak_watch::peak_watch(c10::Device device) : device_(device) {
  if (!device_.is_cpu()) return;
  auto& counts = detail::process_counts::instance();
  unsigned taken = counts.watched;
  do {
    place_ = static_cast<unsigned>(std::countr_one(taken));
    if (place_ >= detail::process_counts::watches) return;  // no free counter: take() returns nullopt
  } while (!counts.watched.compare_exchange_weak(taken, taken | 1U << place_));
}

KEEL_BODY std::optional<std::int64_t> peak_watch::take() {
  if (!device_.is_cpu()) return libtorch::take_device_peak(device_);
  auto& counts = detail::process_counts::instance();
  if (!counts.counting.load(std::memory_order_relaxed) || place_ >= detail::process_counts::watches) return std::nullopt;
  return counts.peaks[place_].exchange(counts.allocated);
}

}  // namespace keel::memory::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
