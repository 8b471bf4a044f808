// Definitions for mapped_memory.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <keel/offload/mapped_memory.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::memory::inline KEEL_MODE {

KEEL_BODY bool is_kept_in_memory(std::filesystem::path const& directory) {
  struct statfs system{};
  if (::statfs(directory.c_str(), &system) != 0) {
    throw file_error("E02", "cannot look at " + directory.string() + ": " + keel::detail::error_words(errno) +
                                ". Name a directory on a disk by options.run_directory, or by TMPDIR.");
  }
  auto const type = static_cast<unsigned long>(system.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

}  // namespace keel::memory::inline KEEL_MODE

namespace keel::memory::detail::inline KEEL_MODE {

KEEL_BODY char const* advice(int code) {
  switch (code) {
    case EMFILE:
      return "This process has as many files open as it may. Raise the limit (ulimit -n), or close files.";
    case ENFILE:
      return "All processes together have as many files open as the system allows. Raise fs.file-max with sysctl, or end other "
             "programs.";
    case ENOMEM:
      return "This process has as many mappings or as much address space as it may. Raise vm.max_map_count with sysctl, or the "
             "limit of address space (ulimit -v).";
    case EFBIG:
      return "The file would be larger than its file system or this process's limit allows. Raise the limit (ulimit -f), or "
             "name a directory on another file system by options.run_directory, or by TMPDIR.";
    default:
      return "Name a directory on a disk with room by options.run_directory, or by TMPDIR.";
  }
}

KEEL_BODY unnamed_file::unnamed_file(std::filesystem::path directory) : directory_(std::move(directory)), process_(::getpid()) {
  std::string name = (directory_ / "keel-offload-XXXXXX").string();
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) throw failure("make a file in", errno);
  ::unlink(name.c_str());
}

KEEL_BODY unnamed_file::range unnamed_file::take(std::int64_t size) {
  std::lock_guard const lock(mutex_);
  auto const hole = std::find_if(holes_.begin(), holes_.end(), [size](auto const& one) { return one.second >= size; });
  std::int64_t const begin = hole == holes_.end() ? end_ : hole->first;
  // Reserve the space now: if the disk filled up later, the process would end with SIGBUS.
  if (int const code = reserve(begin, size); code != 0) {
    punch_hole(begin, size);
    throw failure(("reserve " + std::to_string(size) + " bytes in").c_str(), code);
  }
  bool const grows = hole == holes_.end();
  if (grows) {
    end_ += size;
  } else {
    if (hole->second > size) holes_.emplace_hint(std::next(hole), begin + size, hole->second - size);
    holes_.erase(hole);
  }
  ++taken_;
  return {begin, grows || holes_are_zero_};
}

KEEL_BODY void unnamed_file::give_back(std::int64_t begin, std::int64_t size) noexcept {
  std::lock_guard const lock(mutex_);
  if (--taken_ == 0 && ::ftruncate(descriptor_, 0) == 0) {
    // The truncation also clears holes that could not be punched.
    holes_.clear();
    holes_are_zero_ = true;
    end_ = 0;
    return;
  }
  if (!punch_hole(begin, size)) holes_are_zero_ = false;
  try {
    auto hole = holes_.emplace(begin, size).first;
    auto const next = std::next(hole);
    if (next != holes_.end() && next->first == begin + size) {
      hole->second += next->second;
      holes_.erase(next);
    }
    if (hole == holes_.begin()) return;
    auto const before = std::prev(hole);
    if (before->first + before->second != begin) return;
    before->second += hole->second;
    holes_.erase(hole);
  } catch (std::bad_alloc const&) {
    // The range is never reused, but it is empty.
  }
}

KEEL_BODY int unnamed_file::reserve(std::int64_t begin, std::int64_t size) const {
  // Beyond this limit the system ends the process with SIGXFSZ instead of returning an error.
  rlimit limit{};
  bool const is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (is_limited && static_cast<rlim_t>(begin + size) > limit.rlim_cur) return EFBIG;
  // Check first: filling the disk to find out would fail other writers in the meantime.
  struct statvfs system{};
  bool const is_known = ::fstatvfs(descriptor_, &system) == 0 && system.f_frsize > 0;
  if (is_known && static_cast<std::uint64_t>(size) / system.f_frsize > system.f_bavail) return ENOSPC;
  int code = EINTR;
  while (code == EINTR) code = ::posix_fallocate(descriptor_, begin, size);
  return code;
}

KEEL_BODY mapped_range::~mapped_range() {
  ::munmap(data_, length());
  if (file_->is_of_this_process()) file_->give_back(begin_, size_);
}

KEEL_BODY mapped_range::mapped_range(std::shared_ptr<unnamed_file> file, std::size_t bytes)
    : file_(std::move(file)), bytes_(static_cast<std::int64_t>(bytes)), size_(to_pages(bytes_)) {
  auto const range = file_->take(size_);
  begin_ = range.begin;
  data_ = ::mmap(nullptr, length(), PROT_READ | PROT_WRITE, MAP_SHARED, file_->descriptor(), begin_);
  if (data_ == MAP_FAILED) {
    int const code = errno;
    file_->give_back(begin_, size_);
    throw file_->failure("map a file in", code);
  }
  if (!range.is_zero) std::memset(data_, 0, length());
}

KEEL_BODY void mapped_range::prefetch(std::int64_t begin, std::int64_t end) const {
  auto const [from, size] = pages_of(begin, end);
  if (size > 0) ::madvise(static_cast<char*>(data_) + from, static_cast<std::size_t>(size), MADV_WILLNEED);
}

KEEL_BODY void mapped_range::write_back(std::int64_t begin, std::int64_t end) const {
  auto const [from, size] = pages_of(begin, end);
  if (size > 0) ::sync_file_range(file_->descriptor(), begin_ + from, size, SYNC_FILE_RANGE_WRITE);
}

KEEL_BODY void mapped_range::release(std::int64_t begin, std::int64_t end) const {
  auto const [from, size] = pages_of(begin, end);
  if (size == 0) return;
  auto* const where = static_cast<char*>(data_) + from;
  auto const count = static_cast<std::size_t>(size);
  // Write the pages so that they can be freed, without a flush to the disk: nothing here outlives the process.
  unsigned const written = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  bool const is_written = ::sync_file_range(file_->descriptor(), begin_ + from, size, written) == 0;
  if (!is_written && ::msync(where, count, MS_SYNC) != 0) return;
  ::madvise(where, count, MADV_DONTNEED);
  ::posix_fadvise(file_->descriptor(), begin_ + from, size, POSIX_FADV_DONTNEED);
}

KEEL_BODY std::int64_t mapped_range::resident() const {
  std::vector<unsigned char> flags(static_cast<std::size_t>(size_ / page_size()));
  if (::mincore(data_, length(), flags.data()) != 0) return bytes_;
  auto const there = std::count_if(flags.begin(), flags.end(), [](unsigned char one) { return (one & 1) != 0; });
  return page_size() * there;
}

}  // namespace keel::memory::detail::inline KEEL_MODE

namespace keel::memory::inline KEEL_MODE {

KEEL_BODY mapped_memory::mapped_memory(std::filesystem::path directory) : directory_(std::move(directory)) {
  if (directory_.empty()) {
    char const* const named = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): as the whole of LibTorch does
    directory_ = named != nullptr && *named != '\0' ? named : "/var/tmp";
  }
  if (is_kept_in_memory(directory_)) {
    throw file_error("E02", directory_.string() +
                                " is kept in memory, so that offloading to it frees nothing. Name a directory on a disk with "
                                "options.run_directory, or with TMPDIR.");
  }
}

KEEL_BODY at::Tensor mapped_memory::move_in(at::Tensor const& tensor) {
  at::NoGradGuard no_grad;
  at::Tensor const moved = zeros(tensor, tensor.scalar_type());
  auto const range = find(moved);
  if (range == nullptr) return moved;
  range->read_alone(true);
  moved.copy_(tensor);
  range->release(0, bytes_of(moved));
  range->read_alone(false);
  return moved;
}

KEEL_BODY at::Tensor mapped_memory::zeros(at::Tensor const& like, at::ScalarType type) {
  auto const strides = like.is_non_overlapping_and_dense() ? like.strides().vec() : like.contiguous().strides().vec();
  auto const options = like.options().device(at::kCPU).dtype(type).requires_grad(false);
  auto const bytes = static_cast<std::size_t>(like.numel()) * c10::elementSize(type);
  if (bytes == 0) return at::from_blob(nullptr, like.sizes(), strides, options);
  if (!has_file()) {
    file_ = std::make_shared<detail::unnamed_file>(directory_);
    ranges_.clear();
  }
  auto const range = std::make_shared<detail::mapped_range>(file_, bytes);
  // The deleter keeps the range alive as long as a tensor uses it.
  at::Tensor const result = at::from_blob(range->data(), like.sizes(), strides, [range](void*) {}, options);
  if (ranges_.size() >= next_cleaning_) {
    std::erase_if(ranges_, [](auto const& one) { return one.second.expired(); });
    next_cleaning_ = 2 * ranges_.size() + 64;
  }
  ranges_[range->data()] = range;
  return result;
}

KEEL_BODY std::int64_t mapped_memory::bytes() const {
  std::int64_t sum = 0;
  for_each([&](detail::mapped_range const& one) { sum += one.bytes(); });
  return sum;
}

KEEL_BODY std::int64_t mapped_memory::resident() const {
  std::int64_t sum = 0;
  for_each([&](detail::mapped_range const& one) { sum += one.resident(); });
  return sum;
}

KEEL_BODY at::Tensor host_memory::zeros(at::Tensor const& like, at::ScalarType type) {
  return at::zeros_like(like, like.options().device(at::kCPU).dtype(type));
}

}  // namespace keel::memory::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
