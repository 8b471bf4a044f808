// Opens a safetensors file and parses its header.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/core/file_system.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// An open safetensors file: its header, and the offset of its data.
struct opened_safetensors {
  safetensors_header header;
  std::uint64_t data_begin;
  std::string text;  ///< the bytes before the data
  file_handle file;  ///< empty if the caller opened the file
  std::uint64_t size() const { return data_begin + (header.entries.empty() ? 0 : header.entries.back().end); }
};
inline opened_safetensors open_safetensors(file_system& files, file_handle const& file, std::filesystem::path const& path,
                                           std::uint64_t size) {
  auto const name = path.string();
  std::string text(static_cast<std::size_t>(std::min<std::uint64_t>(size, safetensors_prefix)), '\0');
  auto const source = [&](char* destination, std::size_t count, std::uint64_t offset) {
    if (files.read_at(file, path, destination, count, offset) != count)
      throw_damaged_safetensors(name, "it was truncated while it was read");
  };
  source(text.data(), text.size(), 0);
  auto const length = static_cast<std::size_t>(read_safetensors_length(text.data(), size, name));
  text.resize(safetensors_prefix + length);
  source(text.data() + safetensors_prefix, length, safetensors_prefix);
  auto header = parse_safetensors_header(std::string_view(text).substr(safetensors_prefix), size - text.size(), name);
  std::uint64_t const begin = text.size();
  return {std::move(header), begin, std::move(text), {}};
}

/// Opens the file by name. The size is taken from the open file, because the name may be replaced at any time.
inline opened_safetensors open_safetensors(file_system& files, std::filesystem::path const& path) {
  static_cast<void>(files.size(path));  // throws for a pipe, on which open would block
  auto file = files.open_for_read(path);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_file_error("read the size of", path, errno);
  auto opened = open_safetensors(files, file, path, static_cast<std::uint64_t>(status.st_size));
  opened.file = std::move(file);
  return opened;
}

}  // namespace keel::detail::inline KEEL_MODE
