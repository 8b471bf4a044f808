// The CPU allocator behind keel::memory::budget: LibTorch's allocator with counters, a limit and a listener. LibTorch has one
// CPU allocator per process, so the counts are process-wide. All threads may read and write them.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/mode.hpp>
#include <mutex>
#include <new>
#include <utility>

namespace keel::memory::detail::inline KEEL_MODE {

/// Receives every allocation and deallocation. Called under a lock, on the thread that allocates or frees.
class allocation_listener {
 public:
  virtual void allocated(void const* block, std::int64_t bytes) = 0;
  virtual void freed(void const* block, std::int64_t bytes) = 0;
  virtual void refused(std::int64_t bytes) = 0;

 protected:
  ~allocation_listener() = default;
};

struct process_counts {
  static constexpr unsigned watches = 16;
  std::atomic<std::int64_t> allocated{0};
  std::atomic<std::int64_t> limit{0};
  std::atomic<std::int64_t> refused{0};
  /// Bit i is set if peak i is in use. Peak 0 is the budget's own.
  std::atomic<unsigned> watched{1};
  std::array<std::atomic<std::int64_t>, watches> peaks{};
  std::atomic<bool> counting{false};

  std::atomic<bool> has_listener{false};
  std::mutex listening;
  allocation_listener* listener = nullptr;

  /// Never destroyed: a plain function frees blocks and needs the counters, possibly until the process ends.
  static process_counts& instance() {
    static auto* const counts = new process_counts;
    return *counts;
  }

  void reached(std::int64_t now) {
    for (unsigned left = watched.load(std::memory_order_relaxed); left != 0; left &= left - 1) {
      auto& peak = peaks[static_cast<std::size_t>(std::countr_zero(left))];
      std::int64_t before = peak.load(std::memory_order_relaxed);
      while (now > before && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
      }
    }
  }
  template <class Say>
  void tell(Say const& say) {
    if (!has_listener.load(std::memory_order_acquire)) return;
    std::lock_guard<std::mutex> const lock(listening);
    if (listener != nullptr) say(*listener);
  }
};

/// Allocations of this thread, and the number of the one to refuse; 0: none.
struct thread_counts {
  std::int64_t allocations = 0;
  std::int64_t refuse_at = 0;

  static thread_counts& instance() {
    thread_local thread_counts counts;
    return counts;
  }
};

/// RAII: allocations of this thread during its lifetime do not count for refuse_allocation(), which does not refuse them.
class not_refused {
 public:
  not_refused() : before_(std::exchange(thread_counts::instance(), {})) {}
  not_refused(not_refused const&) = delete;
  not_refused& operator=(not_refused const&) = delete;
  ~not_refused() { thread_counts::instance() = before_; }

 private:
  thread_counts before_;
};

class counting_allocator final : public libtorch::cpu_allocator {
 public:
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  static void install() {
    // Never destroyed, because blocks may outlive main.
    static counting_allocator* const allocator = [] {
      auto* const one = new counting_allocator;
      c10::SetCPUAllocator(one, /*priority=*/100);
      return one;
    }();
    static_cast<void>(allocator);
  }

 private:
  // oneDNN calls raw_allocate, which requires context() == get(). The size is therefore stored in a header before the block.
  static constexpr std::size_t header = 64;

  c10::DataPtr take(std::size_t bytes) const override {
    c10::Device const cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &give_back, cpu};
    auto& counts = process_counts::instance();
    auto const wanted = static_cast<std::int64_t>(bytes);
    std::int64_t const now = counts.allocated.fetch_add(wanted, std::memory_order_relaxed) + wanted;
    std::int64_t const limit = counts.limit.load(std::memory_order_relaxed);
    auto& mine = thread_counts::instance();
    bool const rehearsed = ++mine.allocations == mine.refuse_at;
    if (rehearsed || (limit > 0 && now > limit)) refuse(counts, wanted, now - wanted, rehearsed ? 0 : limit);
    void* block = nullptr;
    try {
      block = c10::alloc_cpu(bytes + header);
    } catch (std::exception const&) {
      counts.allocated.fetch_sub(wanted, std::memory_order_relaxed);
      throw;
    }
    counts.reached(now);
    new (block) std::size_t(bytes);
    void* const data = static_cast<char*>(block) + header;
    counts.tell([&](allocation_listener& listener) { listener.allocated(data, wanted); });
    return {data, data, &give_back, cpu};
  }

  [[noreturn]] static void refuse(process_counts& counts, std::int64_t wanted, std::int64_t held, std::int64_t limit) {
    counts.allocated.fetch_sub(wanted, std::memory_order_relaxed);
    counts.refused.fetch_add(1, std::memory_order_relaxed);
    counts.tell([&](allocation_listener& listener) { listener.refused(wanted); });
    if (limit == 0) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "memory budget: the allocation of ", wanted, " bytes was to be refused");
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, "memory budget: tried to allocate ", wanted, " bytes with ", held, " in use of ",
                     limit);
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    void* const block = static_cast<char*>(data) - header;
    auto const bytes = static_cast<std::int64_t>(*static_cast<std::size_t*>(block));
    auto& counts = process_counts::instance();
    // Report before another thread can reuse the block.
    counts.tell([&](allocation_listener& listener) { listener.freed(data, bytes); });
    counts.allocated.fetch_sub(bytes, std::memory_order_relaxed);
    c10::free_cpu(block);
  }
};

}  // namespace keel::memory::detail::inline KEEL_MODE
