// Definitions for mapped_safetensors.hpp.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <keel/checkpoint/mapped_safetensors.hpp>
#include <keel/checkpoint/open_safetensors.hpp>
#include <keel/checkpoint/safetensors_reader.hpp>
#include <keel/core/error.hpp>
#include <keel/core/file_system.hpp>
#include <memory>
#include <string>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// A memory-mapped file. Writes to the mapping are private to this process.
class mapped_file {
 public:
  mapped_file(file_handle const& file, std::filesystem::path const& path, std::uint64_t size) : size_(size) {
    if (size == 0) return;
    // Without MAP_NORESERVE the system reserves memory for writing to the entire mapping, and refuses a file larger than that.
    address_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
    if (address_ != MAP_FAILED) return;
    if (errno != ENOMEM) throw_file_error("map", path, errno);
    throw out_of_memory_error("E09", "the system has no memory left to map " + path.string() + " of " + std::to_string(size) +
                                         " bytes. " + read_slices + ", or raise the limit with ulimit -v.");
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

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY safetensors_content map_safetensors(std::filesystem::path const& path) {
  using namespace detail;
  file_system files;
  auto const name = path.string();
  auto opened = open_safetensors(files, path);
  auto const mapped = std::make_shared<mapped_file>(opened.file, path, opened.size());
  safetensors_content content;
  for (auto const& entry : opened.header.entries) {
    auto const form = form_of(entry, name);
    char* const bytes = mapped->data() + opened.data_begin + entry.begin;
    std::uint64_t const count = entry.end - entry.begin;
    require_bools(entry, bytes, count, name);
    bool const aligned = reinterpret_cast<std::uintptr_t>(bytes) % c10::elementSize(form.type) == 0;
    at::Tensor tensor;
    if (count == 0 || !aligned) {
      tensor = memory_for(form, entry, name, read_slices);  // copied, because it is empty or not aligned
      if (count > 0) std::memcpy(tensor.data_ptr(), bytes, static_cast<std::size_t>(count));
    } else {
      tensor = at::from_blob(bytes, form.shape, [mapped](void*) {}, at::TensorOptions().dtype(form.type).device(at::kCPU));
    }
    if (form.as_bytes) content.as_bytes.emplace(entry.name, safetensors_dtypes[entry.dtype].name);
    content.tensors.emplace(entry.name, std::move(tensor));
  }
  add_aliases(content, std::move(opened.header.metadata), name);
  return content;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
