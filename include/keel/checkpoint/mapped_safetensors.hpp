// A safetensors file as tensors that are the file: nothing is read before it is used, and several processes share one copy in
// memory. For weights that are looked at or copied from; a run loads its checkpoints with load_safetensors, which finds an
// error of the disk while it can still be named. A file that becomes shorter while it is mapped ends the process (SIGBUS).
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <keel/checkpoint/files.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <memory>
#include <string_view>
#include <utility>

namespace keel {

namespace detail {

/// A whole file in memory; what is written to it stays in this process.
class mapped_file {
 public:
  mapped_file(file_handle const& file, std::filesystem::path const& path, std::uint64_t size) : size_(size) {
    if (size == 0) return;
    address_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
    if (address_ == MAP_FAILED) throw_file_error("map", path, errno);
  }
  mapped_file(mapped_file const&) = delete;
  mapped_file& operator=(mapped_file const&) = delete;
  ~mapped_file() {
    if (size_ > 0) ::munmap(address_, size_);
  }
  char* data() const { return static_cast<char*>(address_); }

 private:
  void* address_ = nullptr;
  std::uint64_t size_;
};

}  // namespace detail

/// The tensors live as long as one of them does, and so does the mapping. One whose bytes are not aligned to its elements,
/// which keel never writes, is copied. Throws checkpoint_error (E05) for a file that is no whole safetensors file, file_error
/// (E02).
inline safetensors_content map_safetensors(std::filesystem::path const& path) {
  using namespace detail;
  posix_files files;
  auto const name = path.string();
  auto const size = files.size(path);
  auto const file = files.open_for_read(path);
  auto opened = open_safetensors(files, file, path, size);
  auto const mapped = std::make_shared<mapped_file>(file, path, size);
  safetensors_content content;
  for (auto const& entry : opened.header.entries) {
    auto const options = at::TensorOptions().dtype(safetensors_scalar_types[entry.dtype]).device(at::kCPU);
    char* const bytes = mapped->data() + opened.data_begin + entry.begin;
    std::uint64_t const count = entry.end - entry.begin;
    require_bools(entry, bytes, count, name);
    bool const aligned = reinterpret_cast<std::uintptr_t>(bytes) % safetensors_dtypes[entry.dtype].bytes == 0;
    at::Tensor tensor;
    if (count == 0 || !aligned) {
      tensor = at::empty(entry.shape, options);
      if (count > 0) std::memcpy(tensor.data_ptr(), bytes, static_cast<std::size_t>(count));
    } else {
      tensor = at::from_blob(
          bytes, entry.shape, [mapped](void*) {}, options);
    }
    content.tensors.emplace(entry.name, std::move(tensor));
  }
  add_aliases(content, std::move(opened.header.metadata), name);
  return content;
}

}  // namespace keel
