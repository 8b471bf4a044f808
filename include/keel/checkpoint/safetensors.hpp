// safetensors: tensors by name in a file that every framework loads, that maps into memory and that never runs code.
// Two names of one tensor (tied weights) are stored once; `__metadata__` keeps "alias:NAME" -> "STORED_NAME" for the other,
// and loading gives both names the same tensor again. Views that only overlap are stored whole, each by itself.
// In several files with an index: sharded_safetensors.hpp. Mapped into memory: mapped_safetensors.hpp.
// Left out: checksums (the manifest's), and replacing a file atomically (the checkpoint store's).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <keel/checkpoint/files.hpp>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/checkpoint/safetensors_reader.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/error.hpp>
#include <span>
#include <string>
#include <utility>

namespace keel {

/// Calls `sink(char const* bytes, std::size_t count)` in file order; a tensor's bytes are valid during the call only.
template <class Sink>
void write_safetensors(tensor_map const& tensors, string_map const& metadata, Sink&& sink) {
  detail::safetensors_writer(tensors, metadata).write(sink);
}

/// `bytes` is the whole file, and need not outlive the call; `name` is what errors call it.
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

/// Writes in place: a crash leaves a file that loading refuses. Nothing is touched if a tensor cannot be saved. Throws
/// data_error (E05) for one that cannot, file_error (E02).
inline void save_safetensors(std::filesystem::path const& path, tensor_map const& tensors, string_map const& metadata = {}) {
  detail::safetensors_writer const writer(tensors, metadata);
  posix_files files;
  auto const file = files.create(path);
  auto const sink = [&](char const* bytes, std::size_t count) { files.write(file, path, bytes, count); };
  writer.write(sink);
  files.sync(file, path);  // a full disk may show only here
}

namespace detail {

/// The header of an open file of `size` bytes and where its data begins.
struct opened_safetensors {
  safetensors_header header;
  std::uint64_t data_begin;
  std::string text;  ///< the bytes before the data
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
  return {std::move(header), begin, std::move(text)};
}

}  // namespace detail

/// Reads each tensor straight into its memory, so that the file is never held twice. Throws checkpoint_error (E05) for a file
/// that is no whole safetensors file, file_error (E02).
inline safetensors_content load_safetensors(std::filesystem::path const& path) {
  posix_files files;
  auto const name = path.string();
  auto const size = files.size(path);
  auto const file = files.open_for_read(path);
  auto opened = detail::open_safetensors(files, file, path, size);
  return detail::read_safetensors_data(std::move(opened.header), name, [&](char* to, std::size_t count, std::uint64_t offset) {
    if (files.read_at(file, path, to, count, opened.data_begin + offset) != count)
      detail::refuse_safetensors(name, "it became shorter while it was read");
  });
}

}  // namespace keel
