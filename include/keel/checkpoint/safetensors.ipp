// Definitions for safetensors.hpp.
#pragma once

#include <cstring>
#include <keel/checkpoint/open_safetensors.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/checkpoint/safetensors_reader.hpp>
#include <keel/checkpoint/safetensors_writer.hpp>
#include <keel/core/file_system.hpp>
#include <keel/core/replace_file.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void write_safetensors_to(std::function<void(char const*, std::size_t)> const& sink, tensor_map const& tensors,
                                    string_map const& metadata) {
  safetensors_writer(tensors, metadata).write(sink);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY safetensors_content parse_safetensors(std::span<char const> bytes, std::string const& name) {
  auto const length = read_safetensors_length(bytes.data(), bytes.size(), name);
  auto const json = bytes.subspan(detail::safetensors_prefix, static_cast<std::size_t>(length));
  auto const data = bytes.subspan(detail::safetensors_prefix + json.size());
  auto header = parse_safetensors_header({json.data(), json.size()}, data.size(), name);
  return detail::read_safetensors_data(std::move(header), name,
                                       [&](char* destination, std::size_t count, std::uint64_t offset) {
                                         std::memcpy(destination, data.data() + offset, count);
                                       });
}

KEEL_BODY void save_safetensors(std::filesystem::path const& path, tensor_map const& tensors, string_map const& metadata) {
  detail::safetensors_writer const writer(tensors, metadata);
  file_system files;
  detail::replace_file(files, path, [&](auto const& sink) { writer.write(sink); });
}

KEEL_BODY safetensors_content load_safetensors(std::filesystem::path const& path) {
  file_system files;
  auto const name = path.string();
  auto opened = detail::open_safetensors(files, path);
  return detail::read_safetensors_data(std::move(opened.header), name, [&](char* to, std::size_t count, std::uint64_t offset) {
    if (files.read_at(opened.file, path, to, count, opened.data_begin + offset) != count)
      detail::throw_damaged_safetensors(name, "it was truncated while it was read");
  });
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
