// keel::memory::recording: every allocation on the CPU from here on, as a file that PyTorch's memory_viz opens (Active Memory
// Timeline). It needs a keel::memory::budget, which counts.
//     keel::memory::recording recording;
//     run.fit(batches, loss_of);
//     recording.save("memory.pickle");
// The file is a pickle of protocol 2 with nothing but dictionaries, lists, text and integers: reading it runs no code.
// Left out: stacks of calls, which a release build does not have; a block's frame is what set_phase() last named. On a GPU,
// PyTorch's own recorder writes such files.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/memory/counting_allocator.hpp>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace keel::memory::detail::inline KEEL_MODE {

/// Writes the few opcodes that a memory snapshot needs (Python's pickletools names them all).
class pickle_writer {
 public:
  pickle_writer() { bytes_ += "\x80\x02"; }
  void begin_dictionary() { bytes_ += "}("; }
  void end_dictionary() { bytes_ += "u"; }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += "e"; }
  void integer(std::int64_t value);
  void text(std::string const& value);
  /// All of it.
  std::string finish() && {
    bytes_ += '.';
    return std::move(bytes_);
  }

 private:
  void little_endian(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xFFU);
  }
  std::string bytes_;
};

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

/// Records the process's allocations on the CPU for as long as it lives, in the format of LibTorch's memory snapshots.
class recording final : private detail::allocation_listener {
 public:
  /// `most`: events that are kept; the newest count. Throws std::logic_error where something records already.
  explicit recording(std::size_t most = 1'000'000);
  recording(recording const&) = delete;
  recording& operator=(recording const&) = delete;
  ~recording();

  /// What the blocks that are allocated from now on are for: the name of their frame.
  void set_phase(std::string name) {
    std::lock_guard<std::mutex> const lock(detail::process_counts::instance().listening);
    phase_ = phase_number(std::move(name));
  }

  /// The snapshot as bytes.
  std::string pickle() const;

  /// Throws file_error (E02).
  void save(std::filesystem::path const& path) const;

 private:
  struct event {
    char const* action;
    std::int64_t address;
    std::int64_t bytes;
    std::int64_t microseconds;
    std::size_t phase;
  };
  struct block {
    std::int64_t bytes;
    std::size_t phase;
  };

  // Called under the lock.
  void allocated(void const* at, std::int64_t bytes) override {
    if (keeping([&] { live_[address_of(at)] = {bytes, phase_}; })) add("alloc", address_of(at), bytes);
  }
  void freed(void const* at, std::int64_t bytes) override;
  void refused(std::int64_t bytes) override { add("oom", 0, bytes); }

  static std::int64_t address_of(void const* at) { return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(at)); }
  /// The recorder's own memory may run out, and whoever allocates or frees must not see it: the snapshot lacks an event.
  template <class Keep>
  static bool keeping(Keep const& keep) {
    try {
      keep();
    } catch (std::bad_alloc const&) {
      return false;
    }
    return true;
  }
  void add(char const* action, std::int64_t address, std::int64_t bytes);
  std::size_t phase_number(std::string name);

  std::size_t most_;
  std::vector<event> events_;
  std::size_t oldest_ = 0;
  std::map<std::int64_t, block> live_;
  std::vector<std::string> phases_{"run"};
  std::size_t phase_ = 0;
};

}  // namespace keel::memory::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/memory/recording.ipp>
#endif
