// keel::memory::budget: counts LibTorch's CPU allocations and refuses those beyond a limit, with the error that a GPU would
// throw. It simulates a smaller machine in tests, and limits a program that shares a machine.
//     keel::memory::budget budget(512 << 20);        bytes; without an argument it only counts
//     budget.refuse_allocation(7);                   for tests: the seventh allocation from here fails, once
// LibTorch has one CPU allocator per process, so at most one budget may exist at a time: a second one throws std::logic_error.
// Allocations from before the first budget are not counted, nor is memory that LibTorch does not allocate, such as that of
// std::vector or a mapped file.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <keel/memory/counting_allocator.hpp>
#include <stdexcept>

namespace keel::memory::inline KEEL_MODE {

/// Counts and limits LibTorch's CPU allocations. At most one per process.
class budget {
 public:
  /// `bytes`: the limit; 0: none. Throws std::logic_error if the process already has a budget.
  explicit budget(std::int64_t bytes = 0) {
    if (counts().counting.exchange(true))
      throw std::logic_error("keel::memory::budget: this process already has one; share it.");
    detail::counting_allocator::install();
    limit(bytes);
  }
  budget(budget const&) = delete;
  budget& operator=(budget const&) = delete;
  ~budget() {
    limit(0);
    refuse_allocation(0);
    counts().counting = false;
  }

  /// Refuses allocations that would raise the allocated bytes above `bytes`; 0 removes the limit.
  void limit(std::int64_t bytes) { counts().limit = bytes; }
  /// The limit in bytes; 0: none.
  std::int64_t limit() const { return counts().limit; }
  /// Bytes allocated by LibTorch on the CPU, counted since the first budget of the process.
  std::int64_t allocated() const { return counts().allocated; }
  /// Peak of allocated() since the last reset_peak(), in bytes.
  std::int64_t peak() const { return counts().peaks[0]; }
  /// Resets peak() to the current value of allocated().
  void reset_peak() { counts().peaks[0] = counts().allocated.load(); }
  /// Number of refused allocations so far.
  std::int64_t refused() const { return counts().refused; }

  /// Refuses only the `nth` allocation of this thread from now, where 1 is the next; 0 cancels.
  void refuse_allocation(std::int64_t nth) {
    auto& mine = detail::thread_counts::instance();
    mine.refuse_at = nth > 0 ? mine.allocations + nth : 0;
  }
  /// Number of allocations by this thread so far.
  std::int64_t allocations() const { return detail::thread_counts::instance().allocations; }

 private:
  static detail::process_counts& counts() { return detail::process_counts::instance(); }
};

}  // namespace keel::memory::inline KEEL_MODE
