// Tensors whose memory is mapped from an unnamed file: offloads the optimizer state of CPU parameters to a disk. They are used
// like any other tensor. Released pages leave memory, and are read from the file on the next access. All tensors of one
// mapped_memory share a file and a descriptor, which child processes do not inherit. The file is removed with the last tensor,
// even if the process is killed.
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

/// True if files in the directory are kept in memory, as on tmpfs. Throws file_error (E02) if the directory does not exist.
bool is_kept_in_memory(std::filesystem::path const& directory);

}  // namespace keel::memory::inline KEEL_MODE

namespace keel::memory::detail::inline KEEL_MODE {

/// Returns advice for a system error, as a sentence.
char const* advice(int code);

inline std::int64_t page_size() {
  static std::int64_t const size = ::sysconf(_SC_PAGESIZE);
  return size;
}

/// An unnamed file, allocated in ranges of whole pages. A range that is given back is freed on disk, and reused before the file
/// grows. Thread-safe, because tensors may be destroyed on any thread.
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
  /// False in a forked child, which shares the file with its parent and must not modify it.
  bool is_of_this_process() const { return process_ == ::getpid(); }

  /// `size`: a multiple of the page size. Throws file_error (E02) if the disk is full or the system refuses.
  range take(std::int64_t size);

  void give_back(std::int64_t begin, std::int64_t size) noexcept;

  file_error failure(char const* what, int code) const {
    return file_error("E02", std::string("cannot ") + what + " " + directory_.string() + ": " +
                                 keel::detail::error_words(code) + ". " + advice(code));
  }

 private:
  /// Returns 0 or the errno value.
  int reserve(std::int64_t begin, std::int64_t size) const;
  /// Frees the range on disk, if the file system supports that.
  bool punch_hole(std::int64_t begin, std::int64_t size) const {
    return ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, size) == 0;
  }

  std::filesystem::path directory_;
  pid_t process_;
  int descriptor_ = -1;
  std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> holes_;  ///< size by offset; no two are adjacent
  bool holes_are_zero_ = true;
  std::int64_t end_ = 0;
  std::int64_t taken_ = 0;  ///< number of ranges in use
};

/// A range of the file, mapped into memory.
class mapped_range {
 public:
  /// Throws file_error (E02).
  mapped_range(std::shared_ptr<unnamed_file> file, std::size_t bytes);
  mapped_range(mapped_range const&) = delete;
  mapped_range& operator=(mapped_range const&) = delete;
  ~mapped_range();

  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  /// Selects whether an access reads only its page, or adjacent pages of the file too.
  void read_alone(bool alone) const { ::madvise(data_, length(), alone ? MADV_RANDOM : MADV_NORMAL); }
  /// Starts to read whole pages, or to write them, and returns. Failures of these calls and of release() cost only memory or
  /// time.
  void prefetch(std::int64_t begin, std::int64_t end) const;
  void write_back(std::int64_t begin, std::int64_t end) const;
  /// Waits until the pages are written, and frees their memory.
  void release(std::int64_t begin, std::int64_t end) const;

  std::int64_t resident() const;

 private:
  struct pages {
    std::int64_t begin, size;  ///< in bytes
  };
  /// Returns the pages that contain the bytes `begin` to `end`.
  pages pages_of(std::int64_t begin, std::int64_t end) const {
    std::int64_t const from = begin / page_size() * page_size();
    return {from, std::max<std::int64_t>(std::min(size_, to_pages(end)) - from, 0)};
  }
  static std::int64_t to_pages(std::int64_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }
  std::size_t length() const { return static_cast<std::size_t>(size_); }

  std::shared_ptr<unnamed_file> file_;
  std::int64_t bytes_;  ///< size of the tensor
  std::int64_t size_;   ///< size of its pages
  std::int64_t begin_ = 0;
  void* data_ = nullptr;
};

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

class mapped_memory final : public state_storage {
 public:
  /// `directory`: must be on a disk, not in memory as /tmp often is; empty: TMPDIR, or /var/tmp. Throws file_error (E02).
  explicit mapped_memory(std::filesystem::path directory = {});

  /// Throws file_error (E02) if the disk is full or the system refuses.
  at::Tensor move_in(at::Tensor const& tensor) override;

  at::Tensor zeros(at::Tensor const& like, at::ScalarType type) override;

  bool holds(at::Tensor const& tensor) const override { return tensor.numel() == 0 || (has_file() && find(tensor) != nullptr); }

  /// Disables read-ahead, which would read pages back that the sweep has released.
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

  /// Returns the size of all tensors stored here, in bytes.
  std::int64_t bytes() const;
  /// Returns the bytes of them that are in memory now, including the page cache.
  std::int64_t resident() const;

 private:
  static std::int64_t bytes_of(at::Tensor const& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

  /// False in a forked child, which creates its own file when it moves tensors in.
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
  std::shared_ptr<detail::unnamed_file> file_;                                   ///< null before the first tensor
  std::unordered_map<void const*, std::weak_ptr<detail::mapped_range>> ranges_;  ///< includes expired ones
  std::size_t next_cleaning_ = 64;
};

/// Host memory, for the state of parameters on another device.
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
