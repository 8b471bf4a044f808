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
#include <keel/core/files.hpp>
#include <keel/memory/counting_allocator.hpp>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace keel::memory {

namespace detail {

/// Writes the few opcodes that a memory snapshot needs (Python's pickletools names them all).
class pickle_writer {
 public:
  pickle_writer() { bytes_ += "\x80\x02"; }
  void begin_dictionary() { bytes_ += "}("; }
  void end_dictionary() { bytes_ += "u"; }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += "e"; }
  void integer(std::int64_t value) {
    if (value >= INT32_MIN && value <= INT32_MAX) {
      bytes_ += 'J';
      little_endian(static_cast<std::uint64_t>(value), 4);
    } else {
      bytes_ += "\x8a\x08";
      little_endian(static_cast<std::uint64_t>(value), 8);
    }
  }
  void text(std::string const& value) {
    bytes_ += 'X';
    little_endian(value.size(), 4);
    bytes_ += value;
  }
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

}  // namespace detail

class recording final : private detail::allocation_listener {
 public:
  /// `most`: events that are kept; the newest count. Throws std::logic_error where something records already.
  explicit recording(std::size_t most = 1'000'000) : most_(most) {
    auto& counts = detail::process_counts::instance();
    std::lock_guard<std::mutex> const lock(counts.listening);
    if (counts.listener != nullptr) throw std::logic_error("keel::memory::recording: this process is being recorded already.");
    counts.listener = this;
    counts.has_listener = true;
  }
  recording(recording const&) = delete;
  recording& operator=(recording const&) = delete;
  ~recording() {
    auto& counts = detail::process_counts::instance();
    std::lock_guard<std::mutex> const lock(counts.listening);
    counts.has_listener = false;
    counts.listener = nullptr;
  }

  /// What the blocks that are allocated from now on are for: the name of their frame.
  void set_phase(std::string name) {
    std::lock_guard<std::mutex> const lock(detail::process_counts::instance().listening);
    phase_ = phase_number(std::move(name));
  }

  /// The snapshot as bytes.
  std::string pickle() const {
    std::lock_guard<std::mutex> const lock(detail::process_counts::instance().listening);
    detail::pickle_writer out;
    auto const number = [&](char const* key, std::int64_t value) {
      out.text(key);
      out.integer(value);
    };
    auto const word = [&](char const* key, std::string const& value) {
      out.text(key);
      out.text(value);
    };
    auto const frames = [&](std::size_t phase) {
      out.text("frames");
      out.begin_list();
      out.begin_dictionary();
      word("name", phases_[phase]);
      word("filename", "keel");
      number("line", 0);
      out.end_dictionary();
      out.end_list();
    };
    out.begin_dictionary();
    out.text("segments");
    out.begin_list();
    for (auto const& [address, live] : live_) {
      out.begin_dictionary();
      number("device", 0);
      number("address", address);
      number("total_size", live.bytes);
      number("allocated_size", live.bytes);
      number("active_size", live.bytes);
      number("requested_size", live.bytes);
      number("stream", 0);
      word("segment_type", "large");
      frames(live.phase);
      out.text("blocks");
      out.begin_list();
      out.begin_dictionary();
      number("address", address);
      number("size", live.bytes);
      number("requested_size", live.bytes);
      word("state", "active_allocated");
      frames(live.phase);
      out.end_dictionary();
      out.end_list();
      out.end_dictionary();
    }
    out.end_list();
    out.text("device_traces");
    out.begin_list();
    out.begin_list();
    for (std::size_t i = 0; i < events_.size(); ++i) {
      event const& one = events_[(oldest_ + i) % events_.size()];
      out.begin_dictionary();
      word("action", one.action);
      number("addr", one.address);
      number("size", one.bytes);
      number("stream", 0);
      number("time_us", one.microseconds);
      frames(one.phase);
      out.end_dictionary();
    }
    out.end_list();
    out.end_list();
    out.end_dictionary();
    return std::move(out).finish();
  }

  /// Throws file_error (E02).
  void save(std::filesystem::path const& path) const {
    std::string const bytes = pickle();
    posix_files files;
    auto const file = files.create(path);
    files.write(file, path, bytes.data(), bytes.size());
    files.sync(file, path);
  }

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
  void freed(void const* at, std::int64_t bytes) override {
    // A block from before the recording says nothing.
    if (live_.erase(address_of(at)) == 0) return;
    add("free_requested", address_of(at), bytes);
    add("free_completed", address_of(at), bytes);
  }
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
  void add(char const* action, std::int64_t address, std::int64_t bytes) {
    auto const now = std::chrono::system_clock::now().time_since_epoch();
    event const one{action, address, bytes, std::chrono::duration_cast<std::chrono::microseconds>(now).count(), phase_};
    if (events_.size() < most_) {
      keeping([&] { events_.push_back(one); });
    } else if (most_ > 0) {
      events_[oldest_] = one;
      oldest_ = (oldest_ + 1) % most_;
    }
  }
  std::size_t phase_number(std::string name) {
    for (std::size_t i = 0; i < phases_.size(); ++i) {
      if (phases_[i] == name) return i;
    }
    phases_.push_back(std::move(name));
    return phases_.size() - 1;
  }

  std::size_t most_;
  std::vector<event> events_;
  std::size_t oldest_ = 0;
  std::map<std::int64_t, block> live_;
  std::vector<std::string> phases_{"run"};
  std::size_t phase_ = 0;
};

}  // namespace keel::memory
