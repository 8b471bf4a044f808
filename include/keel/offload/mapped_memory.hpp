// Tensors that live in a file without a name instead of memory: what offloading an optimizer means where parameters are on the
// CPU. They are read and written like any other tensor; what was released leaves memory, and comes back from the file when it
// is touched. All tensors of one mapped_memory share one file and one descriptor, which no child process inherits. The file
// goes with the last of them, also when the process is killed.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <keel/optimizer/state_storage.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace keel::memory::inline KEEL_MODE {

/// Files there take memory. Throws file_error (E02) for a directory that does not exist.
bool is_kept_in_memory(std::filesystem::path const& directory);

}  // namespace keel::memory::inline KEEL_MODE

namespace keel::memory::detail::inline KEEL_MODE {

/// What helps against an error of the system, as a sentence.
char const* advice(int code);

inline std::int64_t page_size() {
  static std::int64_t const size = ::sysconf(_SC_PAGESIZE);
  return size;
}

/// A file without a name, handed out in ranges of whole pages. Of ranges that come back the disk has its room again, and they
/// are handed out before the file grows. Ranges may come back on any thread, as tensors may end on any.
class unnamed_file {
 public:
  struct range {
    std::int64_t begin;
    bool is_zero;  ///< reads as zeros
  };

  /// Throws file_error (E02).
  explicit unnamed_file(std::filesystem::path directory);
  unnamed_file(unnamed_file const&) = delete;
  unnamed_file& operator=(unnamed_file const&) = delete;
  ~unnamed_file() { ::close(descriptor_); }

  int descriptor() const { return descriptor_; }
  /// A process that was forked shares the file with its parent, whose tensors it must leave alone.
  bool is_of_this_process() const { return process_ == ::getpid(); }

  /// `size`: of whole pages. Throws file_error (E02) where the disk is full or refuses.
  range take(std::int64_t size);

  void give_back(std::int64_t begin, std::int64_t size) noexcept;

  file_error failure(char const* what, int code) const {
    return file_error("E02", std::string("cannot ") + what + " " + directory_.string() + ": " +
                                 keel::detail::error_words(code) + ". " + advice(code));
  }

 private:
  /// Zero, or the system's number of the error.
  int reserve(std::int64_t begin, std::int64_t size) const;
  /// Gives the disk its room back, where the file system can.
  bool punch_hole(std::int64_t begin, std::int64_t size) const {
    return ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, size) == 0;
  }

  std::filesystem::path directory_;
  pid_t process_;
  int descriptor_ = -1;
  std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> holes_;  ///< size by beginning; no two of them touch
  bool holes_are_zero_ = true;
  std::int64_t end_ = 0;
  std::int64_t taken_ = 0;  ///< ranges
};

/// A range of the file, in memory.
class mapped_range {
 public:
  /// Throws file_error (E02).
  mapped_range(std::shared_ptr<unnamed_file> file, std::size_t bytes);
  mapped_range(mapped_range const&) = delete;
  mapped_range& operator=(mapped_range const&) = delete;
  ~mapped_range();

  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  /// How the system reads what is touched and not in memory: it alone, or its neighbours in the file with it.
  void read_alone(bool alone) const { ::madvise(data_, length(), alone ? MADV_RANDOM : MADV_NORMAL); }
  /// Start to read and to write whole pages, and return. What these and release() fail to do costs memory or time alone.
  void prefetch(std::int64_t begin, std::int64_t end) const;
  void write_back(std::int64_t begin, std::int64_t end) const;
  /// Waits for the write, and frees the pages.
  void release(std::int64_t begin, std::int64_t end) const;

  std::int64_t resident() const;

 private:
  struct pages {
    std::int64_t begin, size;  ///< in bytes
  };
  /// Those that the bytes `begin` to `end` lie in.
  pages pages_of(std::int64_t begin, std::int64_t end) const {
    std::int64_t const from = begin / page_size() * page_size();
    return {from, std::max<std::int64_t>(std::min(size_, to_pages(end)) - from, 0)};
  }
  static std::int64_t to_pages(std::int64_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }
  std::size_t length() const { return static_cast<std::size_t>(size_); }

  std::shared_ptr<unnamed_file> file_;
  std::int64_t bytes_;  ///< of the tensor
  std::int64_t size_;   ///< of its pages
  std::int64_t begin_ = 0;
  void* data_ = nullptr;
};

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

class mapped_memory final : public state_storage {
 public:
  /// `directory`: on a disk, and not in memory as /tmp often is; empty: what TMPDIR says, or /var/tmp. Throws file_error (E02).
  explicit mapped_memory(std::filesystem::path directory = {});

  /// Throws file_error (E02) where the disk is full or refuses.
  at::Tensor move_in(at::Tensor const& tensor) override;

  at::Tensor zeros(at::Tensor const& like, at::ScalarType type) override;

  bool holds(at::Tensor const& tensor) const override { return tensor.numel() == 0 || (has_file() && find(tensor) != nullptr); }

  /// A sweep that read neighbours in would bring back what it has released.
  void begin_sweep() override {
    for_each([](detail::mapped_range const& one) { one.read_alone(true); });
  }
  void end_sweep() override {
    for_each([](detail::mapped_range const& one) { one.read_alone(false); });
  }
  void prefetch(at::Tensor const& tensor, std::int64_t begin, std::int64_t end) override {
    if (auto const range = find(tensor)) range->prefetch(begin, end);
  }
  void write_back(at::Tensor const& tensor, std::int64_t begin, std::int64_t end) override {
    if (auto const range = find(tensor)) range->write_back(begin, end);
  }
  void release(at::Tensor const& tensor, std::int64_t begin, std::int64_t end) override {
    if (auto const range = find(tensor)) range->release(begin, end);
  }

  /// Bytes of all tensors that live here.
  std::int64_t bytes() const;
  /// Those of them that are in memory at the moment, in the system's cache of the files too.
  std::int64_t resident() const;

 private:
  static std::int64_t bytes_of(at::Tensor const& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

  /// A forked process makes a file for itself, and moves there what it goes on with.
  bool has_file() const { return file_ != nullptr && file_->is_of_this_process(); }

  std::shared_ptr<detail::mapped_range> find(at::Tensor const& tensor) const {
    auto const found = ranges_.find(tensor.data_ptr());
    return found == ranges_.end() ? nullptr : found->second.lock();
  }

  template <class Visit>
  void for_each(Visit const& visit) const {
    for (auto const& [data, weak] : ranges_) {
      if (auto const range = weak.lock()) visit(*range);
    }
  }

  std::filesystem::path directory_;
  std::shared_ptr<detail::unnamed_file> file_;                                   ///< from the first tensor on
  std::unordered_map<void const*, std::weak_ptr<detail::mapped_range>> ranges_;  ///< also some that are gone
  std::size_t next_cleaning_ = 64;
};

/// The host's memory, for state of parameters that are on another device.
class host_memory final : public state_storage {
 public:
  at::Tensor move_in(at::Tensor const& tensor) override { return tensor.to(at::kCPU); }
  at::Tensor zeros(at::Tensor const& like, at::ScalarType type) override;
  bool holds(at::Tensor const& tensor) const override { return tensor.device().is_cpu(); }
  void release(at::Tensor const&, std::int64_t, std::int64_t) override {}
};

}  // namespace keel::memory::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/offload/mapped_memory.ipp>
#endif
