// A CPU allocator that counts what LibTorch takes and refuses what goes over a limit, with the error that a GPU would throw.
// It stands in for a smaller machine: in tests, and wherever a program must leave memory to others.
//     keel::memory_budget budget;            counts from here on
//     budget.limit(512 << 20);               bytes; 0: no limit
// LibTorch has one CPU allocator a process, so there is one budget a process at a time: a second one throws std::logic_error.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstdint>
#include <keel/libtorch/compatibility.hpp>
#include <new>
#include <stdexcept>

namespace keel {

namespace detail {

struct memory_counts {
  std::atomic<std::int64_t> in_use{0};
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> limit{0};
  std::atomic<std::int64_t> refused{0};
  std::atomic<bool> taken{false};
};

/// Freed blocks find their counter from a plain function, so it has the process's lifetime, as LibTorch's allocator has.
inline memory_counts& process_memory_counts() {
  static memory_counts counts;
  return counts;
}

class counting_allocator final : public libtorch::cpu_allocator {
 public:
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

 private:
  // oneDNN allocates through raw_allocate, which wants context() == get(): the size stands in a header before the block.
  static constexpr std::size_t header = 64;

  c10::DataPtr take(std::size_t bytes) const override {
    c10::Device const cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &give_back, cpu};
    auto& counts = process_memory_counts();
    auto const wanted = static_cast<std::int64_t>(bytes);
    std::int64_t const now = counts.in_use += wanted;
    std::int64_t const limit = counts.limit;
    if (limit > 0 && now > limit) {
      counts.in_use -= wanted;
      ++counts.refused;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "memory budget: tried to allocate ", wanted, " bytes with ", now - wanted,
                       " in use of ", limit);
    }
    std::int64_t peak = counts.peak;
    while (now > peak && !counts.peak.compare_exchange_weak(peak, now)) {
    }
    void* block = nullptr;
    try {
      block = c10::alloc_cpu(bytes + header);
    } catch (std::exception const&) {
      counts.in_use -= wanted;
      throw;
    }
    new (block) std::size_t(bytes);
    void* const data = static_cast<char*>(block) + header;
    return {data, data, &give_back, cpu};
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    void* const block = static_cast<char*>(data) - header;
    process_memory_counts().in_use -= static_cast<std::int64_t>(*static_cast<std::size_t*>(block));
    c10::free_cpu(block);
  }
};

}  // namespace detail

class memory_budget {
 public:
  memory_budget() {
    if (counts().taken.exchange(true)) throw std::logic_error("keel::memory_budget: this process already has one; share it.");
    // Blocks outlive any scope, so the allocator stays for good; only its limit goes with this object.
    static detail::counting_allocator allocator;
    static bool const installed = [] {
      c10::SetCPUAllocator(&allocator, /*priority=*/100);
      return true;
    }();
    static_cast<void>(installed);
  }
  memory_budget(memory_budget const&) = delete;
  memory_budget& operator=(memory_budget const&) = delete;
  ~memory_budget() {
    counts().limit = 0;
    counts().taken = false;
  }

  /// Refuses allocations that would bring the bytes in use above `bytes`; 0 lifts the limit.
  void limit(std::int64_t bytes) { counts().limit = bytes; }
  /// Bytes that LibTorch holds on the CPU, of those allocated since the first budget of the process.
  std::int64_t in_use() const { return counts().in_use; }
  std::int64_t peak() const { return counts().peak; }
  void reset_peak() { counts().peak = counts().in_use.load(); }
  /// Allocations refused so far.
  std::int64_t refused() const { return counts().refused; }

 private:
  static detail::memory_counts& counts() { return detail::process_memory_counts(); }
};

}  // namespace keel
