// Reads and writes safetensors: named tensors in a file that every framework loads, that can be memory-mapped, and that never
// runs code. A tensor with several names (tied weights) is stored once. `__metadata__` maps "alias:NAME" to "STORED_NAME", and
// loading gives both names the same tensor. Views that overlap partially are stored separately.
// See sharded_safetensors.hpp for several files with an index, mapped_safetensors.hpp for memory mapping, and
// safetensors_file.hpp for single tensors and slices. The format has no checksums; manifests do.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <keel/checkpoint/tensor_map.hpp>
#include <span>
#include <string>

namespace keel::detail::inline KEEL_MODE {
void write_safetensors_to(std::function<void(char const*, std::size_t)> const& sink, tensor_map const& tensors,
                          string_map const& metadata);
}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Writes a file's bytes by calling `sink(char const* bytes, std::size_t count)` in file order. `bytes` is valid only during
/// the call.
template <class Sink>
void write_safetensors(tensor_map const& tensors, string_map const& metadata, Sink&& sink) {
  detail::write_safetensors_to([&sink](char const* bytes, std::size_t count) { sink(bytes, count); }, tensors, metadata);
}

/// Parses a file in memory. `bytes` is the whole file and need not outlive the call; `name` is used in errors. Throws
/// checkpoint_error (E05) if it is not a complete safetensors file, and out_of_memory_error (E09).
safetensors_content parse_safetensors(std::span<char const> bytes, std::string const& name);

/// Writes a file, replacing an existing one atomically. After a crash, an error or a full disk the old file is intact, and
/// tensors mapped from it stay valid (replace_file.hpp). Throws data_error (E05) for a tensor that cannot be saved, and
/// file_error (E02).
void save_safetensors(std::filesystem::path const& path, tensor_map const& tensors, string_map const& metadata = {});

/// Loads a file. Reads each tensor directly into its memory, so that the file is never held twice. Throws checkpoint_error
/// (E05) if it is not a complete safetensors file. Throws out_of_memory_error (E09) if it declares more data than fits in
/// memory, and file_error (E02).
safetensors_content load_safetensors(std::filesystem::path const& path);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/safetensors.ipp>
#endif
