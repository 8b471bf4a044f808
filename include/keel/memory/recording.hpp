// keel::memory::recording: records every CPU allocation during its lifetime, in a file for PyTorch's memory_viz (Active Memory
// Timeline). Requires a keel::memory::budget, which counts.
//     keel::memory::recording recording;
//     run.fit(batches, loss_of);
//     recording.save("memory.pickle");
// The file is a pickle of protocol 2 that contains only dictionaries, lists, strings and integers: loading it runs no code. Not
// supported: call stacks, which a release build lacks. The frame of a block is the name last passed to set_phase(). On a GPU,
// use PyTorch's own recorder.
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

/// Writes the pickle opcodes that a memory snapshot needs; Python's pickletools documents them.
class pickle_writer {
 public:
  pickle_writer() { bytes_ += "\x80\x02"; }
  void begin_dictionary() { bytes_ += "}("; }
  void end_dictionary() { bytes_ += "u"; }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += "e"; }
  void integer(std::int64_t value);
  void text(std::string const& value);
  /// Ends the pickle and returns it.
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

/// Records the process's CPU allocations during its lifetime, in the format of LibTorch's memory snapshots.
class recording final : private detail::allocation_listener {
 public:
  /// `most`: number of events to keep; the oldest are dropped. Throws std::logic_error if another recording exists.
  explicit recording(std::size_t most = 1'000'000);
  recording(recording const&) = delete;
  recording& operator=(recording const&) = delete;
  ~recording();

  /// Sets the frame name of the blocks that are allocated from now on.
  void set_phase(std::string name) {
    std::lock_guard<std::mutex> const lock(detail::process_counts::instance().listening);
    phase_ = phase_number(std::move(name));
  }

  /// Returns the snapshot in pickle format.
  std::string pickle() const;

  /// Writes the snapshot to a file. Throws file_error (E02).
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

  // Called with the lock held.
  void allocated(void const* at, std::int64_t bytes) override {
    if (keeping([&] { live_[address_of(at)] = {bytes, phase_}; })) add("alloc", address_of(at), bytes);
  }
  void freed(void const* at, std::int64_t bytes) override;
  void refused(std::int64_t bytes) override { add("oom", 0, bytes); }

  static std::int64_t address_of(void const* at) { return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(at)); }
  /// Runs `keep`. If the recorder itself runs out of memory, the snapshot lacks an event, but the program's allocation must not
  /// fail.
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
