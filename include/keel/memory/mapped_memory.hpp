// Tensors that live in files without a name instead of memory: what offloading an optimizer means where parameters are on the
// CPU. They are read and written like any other tensor; what was released leaves memory, and comes back from the file when it
// is touched. The files go with the last tensor, also when the process is killed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <keel/error.hpp>
#include <keel/update/state_home.hpp>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace keel::memory {

/// Files there take memory. Throws file_error (E02) for a directory that does not exist.
inline bool is_kept_in_memory(std::filesystem::path const& directory) {
  struct statfs system {};
  if (::statfs(directory.c_str(), &system) != 0) {
    throw file_error("E02", "cannot look at " + directory.string() + ": " + std::strerror(errno) +
                                ". Name a directory on a disk by options.run_directory, or by TMPDIR.");
  }
  auto const type = static_cast<unsigned long>(system.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

class mapped_memory final : public state_home {
 public:
  /// `directory`: on a disk, and not in memory as /tmp often is; empty: what TMPDIR says, or /var/tmp. Throws file_error (E02).
  explicit mapped_memory(std::filesystem::path directory = {}) : directory_(std::move(directory)) {
    if (directory_.empty()) {
      char const* const named = std::getenv("TMPDIR");
      directory_ = named != nullptr && *named != '\0' ? named : "/var/tmp";
    }
    if (is_kept_in_memory(directory_)) {
      throw file_error("E02", directory_.string() +
                                  " is kept in memory, so that offloading to it frees nothing. Name a directory on a disk with "
                                  "options.run_directory, or with TMPDIR.");
    }
  }

  /// Throws file_error (E02) where the disk is full or refuses.
  at::Tensor move_in(at::Tensor const& tensor) override {
    at::NoGradGuard no_grad;
    at::Tensor const moved = zeros(tensor, tensor.scalar_type());
    moved.copy_(tensor);
    release(moved, 0, bytes_of(moved));
    return moved;
  }

  at::Tensor zeros(at::Tensor const& like, at::ScalarType type) override {
    auto const strides = like.is_non_overlapping_and_dense() ? like.strides().vec() : like.contiguous().strides().vec();
    auto const options = like.options().device(at::kCPU).dtype(type).requires_grad(false);
    auto const bytes = static_cast<std::size_t>(like.numel()) * c10::elementSize(type);
    if (bytes == 0) return at::from_blob(nullptr, like.sizes(), strides, options);
    auto const region = std::make_shared<mapping>(*this, bytes);
    // The deleter keeps the mapping for as long as a tensor uses it.
    at::Tensor const result = at::from_blob(
        region->data, like.sizes(), strides, [region](void*) {}, options);
    // Those that are gone make room in the list, too.
    for (auto one = mappings_.begin(); one != mappings_.end();)
      one = one->second.expired() ? mappings_.erase(one) : std::next(one);
    mappings_[region->data] = region;
    return result;
  }

  bool holds(at::Tensor const& tensor) const override {
    auto const found = mappings_.find(tensor.data_ptr());
    return tensor.numel() == 0 || (found != mappings_.end() && !found->second.expired());
  }

  void release(at::Tensor const& tensor, std::int64_t begin, std::int64_t end) override {
    auto const found = mappings_.find(tensor.data_ptr());
    auto const region = found == mappings_.end() ? nullptr : found->second.lock();
    if (region != nullptr) region->release(begin, end);
  }

  /// Bytes of all tensors that live here.
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for_each([&](mapping const& one) { sum += static_cast<std::int64_t>(one.bytes); });
    return sum;
  }
  /// Those of them that are in memory at the moment, in the system's cache of the files too.
  std::int64_t resident() const {
    std::int64_t sum = 0;
    for_each([&](mapping const& one) { sum += one.resident(); });
    return sum;
  }

 private:
  /// One file, mapped as a whole.
  struct mapping {
    mapping(mapped_memory const& home, std::size_t size) : bytes(size) {
      std::string name = (home.directory_ / "keel-offload-XXXXXX").string();
      file = ::mkstemp(name.data());
      if (file < 0) throw home.failure("make a file in");
      ::unlink(name.c_str());
      // Reserved now: a disk that fills up later would end the process with SIGBUS.
      if (int const code = ::posix_fallocate(file, 0, static_cast<off_t>(bytes)); code != 0) {
        ::close(file);
        errno = code;
        throw home.failure(("reserve " + std::to_string(bytes) + " bytes in").c_str());
      }
      data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (data == MAP_FAILED) {
        ::close(file);
        throw home.failure("map a file in");
      }
    }
    mapping(mapping const&) = delete;
    mapping& operator=(mapping const&) = delete;
    ~mapping() {
      ::munmap(data, bytes);
      ::close(file);
    }

    /// Whole pages only. What the calls fail to free stays in memory, and nothing else is wrong.
    void release(std::int64_t begin, std::int64_t end) const {
      auto const page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
      std::int64_t const from = begin / page * page;
      std::int64_t const to = std::min(static_cast<std::int64_t>(bytes), (end + page - 1) / page * page);
      if (from >= to) return;
      auto* const where = static_cast<char*>(data) + from;
      auto const count = static_cast<std::size_t>(to - from);
      // Written so that the pages can go, and no further: nothing here outlives the process, so the disk need not flush.
      unsigned const written = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
      if (::sync_file_range(file, from, to - from, written) != 0 && ::msync(where, count, MS_SYNC) != 0) return;
      ::madvise(where, count, MADV_DONTNEED);
      ::posix_fadvise(file, from, static_cast<off_t>(count), POSIX_FADV_DONTNEED);
    }

    std::int64_t resident() const {
      auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
      std::vector<unsigned char> pages((bytes + page - 1) / page);
      if (::mincore(data, bytes, pages.data()) != 0) return static_cast<std::int64_t>(bytes);
      auto const there = std::count_if(pages.begin(), pages.end(), [](unsigned char one) { return (one & 1) != 0; });
      return static_cast<std::int64_t>(page) * there;
    }

    std::size_t bytes;
    int file = -1;
    void* data = nullptr;
  };

  static std::int64_t bytes_of(at::Tensor const& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

  template <class Visit>
  void for_each(Visit const& visit) const {
    for (auto const& [data, weak] : mappings_) {
      if (auto const region = weak.lock()) visit(*region);
    }
  }

  file_error failure(char const* what) const {
    return file_error("E02", std::string("cannot ") + what + " " + directory_.string() + ": " + std::strerror(errno) +
                                 ". Name a directory on a disk with room by options.run_directory, or by TMPDIR.");
  }

  std::filesystem::path directory_;
  std::unordered_map<void const*, std::weak_ptr<mapping>> mappings_;
};

/// The host's memory, for state of parameters that are on another device.
class host_memory final : public state_home {
 public:
  at::Tensor move_in(at::Tensor const& tensor) override { return tensor.to(at::kCPU); }
  at::Tensor zeros(at::Tensor const& like, at::ScalarType type) override {
    return at::zeros_like(like, like.options().device(at::kCPU).dtype(type));
  }
  bool holds(at::Tensor const& tensor) const override { return tensor.device().is_cpu(); }
  void release(at::Tensor const&, std::int64_t, std::int64_t) override {}
};

}  // namespace keel::memory
