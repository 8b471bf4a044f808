// keel::memory::budget: counts what LibTorch takes on the CPU and refuses what goes over a limit, with the error that a GPU
// would throw. It stands in for a smaller machine in tests, and leaves memory to others in a program that must.
//     keel::memory::budget budget(512 << 20);        bytes; without a number it only counts
//     budget.refuse_allocation(7);                   a rehearsal: the seventh allocation from here fails, once
// LibTorch has one CPU allocator a process, so there is one budget a process at a time: a second one throws std::logic_error.
// What was allocated before the first one is not counted. Memory that LibTorch does not hand out, such as std::vector's or a
// mapped file's, is not either.
#pragma once

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <keel/memory/counting_allocator.hpp>
#include <stdexcept>

namespace keel::memory::inline KEEL_MODE {

/// Counts, and limits, what LibTorch allocates on the CPU. One in a process.
class budget {
 public:
  /// `bytes`: the limit; 0: none. Throws std::logic_error where the process has a budget already.
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

  /// Refuses allocations that would bring the bytes in use above `bytes`; 0 lifts the limit.
  void limit(std::int64_t bytes) { counts().limit = bytes; }
  /// Bytes; 0: none.
  std::int64_t limit() const { return counts().limit; }
  /// Bytes that LibTorch holds on the CPU, of those allocated since the first budget of the process.
  std::int64_t allocated() const { return counts().allocated; }
  /// The most of them since the last reset_peak().
  std::int64_t peak() const { return counts().peaks[0]; }
  /// peak() begins again with what is held now.
  void reset_peak() { counts().peaks[0] = counts().allocated.load(); }
  /// Allocations refused so far.
  std::int64_t refused() const { return counts().refused; }

  /// Refuses the `nth` allocation of this thread from now, 1 being the next, and no other; 0 calls it off.
  void refuse_allocation(std::int64_t nth) {
    auto& mine = detail::thread_counts::instance();
    mine.refuse_at = nth > 0 ? mine.allocations + nth : 0;
  }
  /// Allocations of this thread so far.
  std::int64_t allocations() const { return detail::thread_counts::instance().allocations; }

 private:
  static detail::process_counts& counts() { return detail::process_counts::instance(); }
};

}  // namespace keel::memory::inline KEEL_MODE
