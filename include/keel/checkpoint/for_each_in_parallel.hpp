// Distributes work over several new threads while training is blocked anyway. A single thread reaches neither memory nor disk
// bandwidth, and LibTorch's thread count may be set to one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <keel/libtorch/mode.hpp>
#include <mutex>
#include <thread>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// With less data, starting a thread costs more than it saves.
inline constexpr std::uint64_t min_bytes_per_thread = 8 << 20;

/// Calls `work(i)` once for each i below `count`, on up to four threads. Rethrows the first exception.
template <class Work>
void for_each_in_parallel(std::size_t count, std::uint64_t bytes, Work const& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failed;
  auto const run = [&] {
    try {
      for (std::size_t i; (i = next++) < count;) work(i);
    } catch (...) {
      // Rethrown on the calling thread below.
      std::lock_guard<std::mutex> const lock(mutex);
      if (!failed) failed = std::current_exception();
      next = count;
    }
  };
  std::size_t const cores = std::max(1u, std::thread::hardware_concurrency());
  auto const helpers = std::min({std::size_t{4}, cores, count, static_cast<std::size_t>(bytes / min_bytes_per_thread + 1)}) - 1;
  {
    std::vector<std::jthread> threads;
    if (count > 0) {
      for (std::size_t i = 0; i < helpers; ++i) threads.emplace_back(run);
    }
    run();
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace keel::detail::inline KEEL_MODE
