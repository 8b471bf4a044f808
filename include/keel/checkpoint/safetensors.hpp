// safetensors: tensors by name in a file that every framework loads, that maps into memory and that never runs code.
// Two names of one tensor (tied weights) are stored once; `__metadata__` keeps "alias:NAME" -> "STORED_NAME" for the other,
// and loading gives both names the same tensor again. Views that only overlap are stored whole, each by itself.
// In several files with an index: sharded_safetensors.hpp. Mapped into memory: mapped_safetensors.hpp. Single tensors and
// slices of a file: safetensors_file.hpp. Left out: checksums (the manifest's).
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/checkpoint/safetensors_reader.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/core/error.hpp>
#include <keel/core/files.hpp>
#include <keel/core/replace_file.hpp>
#include <span>
#include <string>
#include <utility>

namespace keel {

/// Calls `sink(char const* bytes, std::size_t count)` in file order; a tensor's bytes are valid during the call only.
template <class Sink>
void write_safetensors(tensor_map const& tensors, string_map const& metadata, Sink&& sink) {
  detail::safetensors_writer(tensors, metadata).write(sink);
}

/// `bytes` is the whole file, and need not outlive the call; `name` is what errors call it. Throws checkpoint_error (E05) for
/// bytes that are not a whole safetensors file, out_of_memory_error (E09).
inline safetensors_content parse_safetensors(std::span<char const> bytes, std::string const& name) {
  auto const length = read_safetensors_length(bytes.data(), bytes.size(), name);
  auto const json = bytes.subspan(detail::safetensors_prefix, static_cast<std::size_t>(length));
  auto const data = bytes.subspan(detail::safetensors_prefix + json.size());
  auto header = parse_safetensors_header({json.data(), json.size()}, data.size(), name);
  return detail::read_safetensors_data(std::move(header), name,
                                       [&](char* destination, std::size_t count, std::uint64_t offset) {
                                         std::memcpy(destination, data.data() + offset, count);
                                       });
}

/// Replaces a file of this name as a whole: a crash, an error or a full disk leaves the older one, and tensors that are mapped
/// from it stay as they are (replace_file.hpp). Throws data_error (E05) for a tensor that cannot be saved, file_error (E02).
inline void save_safetensors(std::filesystem::path const& path, tensor_map const& tensors, string_map const& metadata = {}) {
  detail::safetensors_writer const writer(tensors, metadata);
  posix_files files;
  detail::replace_file(files, path, [&](auto const& sink) { writer.write(sink); });
}

namespace detail {

/// The header of an open file of `size` bytes and where its data begins.
struct opened_safetensors {
  safetensors_header header;
  std::uint64_t data_begin;
  std::string text;  ///< the bytes before the data
  file_handle file;  ///< where it was opened by its name
  std::uint64_t size() const { return data_begin + (header.entries.empty() ? 0 : header.entries.back().end); }
};
template <class Files>
opened_safetensors open_safetensors(Files& files, file_handle const& file, std::filesystem::path const& path,
                                    std::uint64_t size) {
  auto const name = path.string();
  std::string text(static_cast<std::size_t>(std::min<std::uint64_t>(size, safetensors_prefix)), '\0');
  auto const source = [&](char* destination, std::size_t count, std::uint64_t offset) {
    if (files.read_at(file, path, destination, count, offset) != count)
      refuse_safetensors(name, "it became shorter while it was read");
  };
  source(text.data(), text.size(), 0);
  auto const length = static_cast<std::size_t>(read_safetensors_length(text.data(), size, name));
  text.resize(safetensors_prefix + length);
  source(text.data() + safetensors_prefix, length, safetensors_prefix);
  auto header = parse_safetensors_header(std::string_view(text).substr(safetensors_prefix), size - text.size(), name);
  std::uint64_t const begin = text.size();
  return {std::move(header), begin, std::move(text), {}};
}

/// The file of this name, its size that of what was opened: another may take its place at any time.
inline opened_safetensors open_safetensors(posix_files& files, std::filesystem::path const& path) {
  static_cast<void>(files.size(path));  // throws for a pipe, which opening would wait for
  auto file = files.open_for_read(path);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_file_error("read the size of", path, errno);
  auto opened = open_safetensors(files, file, path, static_cast<std::uint64_t>(status.st_size));
  opened.file = std::move(file);
  return opened;
}

}  // namespace detail

/// Reads each tensor straight into its memory, so that the file is never held twice. Throws checkpoint_error (E05) for a file
/// that is not a whole safetensors file, out_of_memory_error (E09) for one that declares more than there is, file_error (E02).
inline safetensors_content load_safetensors(std::filesystem::path const& path) {
  posix_files files;
  auto const name = path.string();
  auto opened = detail::open_safetensors(files, path);
  return detail::read_safetensors_data(std::move(opened.header), name, [&](char* to, std::size_t count, std::uint64_t offset) {
    if (files.read_at(opened.file, path, to, count, opened.data_begin + offset) != count)
      detail::refuse_safetensors(name, "it became shorter while it was read");
  });
}

}  // namespace keel
