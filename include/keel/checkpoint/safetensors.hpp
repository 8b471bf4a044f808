// safetensors: tensors by name in a file that every framework loads, that maps into memory and that never runs code.
// Two names of one tensor (tied weights) are stored once; `__metadata__` keeps "alias:NAME" -> "STORED_NAME" for the other,
// and loading gives both names the same tensor again. Views that only overlap are stored whole, each by itself.
// In several files with an index: sharded_safetensors.hpp. Mapped into memory: mapped_safetensors.hpp. Single tensors and
// slices of a file: safetensors_file.hpp. Left out: checksums (the manifest's).
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

/// Calls `sink(char const* bytes, std::size_t count)` in file order; a tensor's bytes are valid during the call only.
template <class Sink>
void write_safetensors(tensor_map const& tensors, string_map const& metadata, Sink&& sink) {
  detail::write_safetensors_to([&sink](char const* bytes, std::size_t count) { sink(bytes, count); }, tensors, metadata);
}

/// `bytes` is the whole file, and need not outlive the call; `name` is what errors call it. Throws checkpoint_error (E05) for
/// bytes that are not a whole safetensors file, out_of_memory_error (E09).
safetensors_content parse_safetensors(std::span<char const> bytes, std::string const& name);

/// Replaces a file of this name as a whole: a crash, an error or a full disk leaves the older one, and tensors that are mapped
/// from it stay as they are (replace_file.hpp). Throws data_error (E05) for a tensor that cannot be saved, file_error (E02).
void save_safetensors(std::filesystem::path const& path, tensor_map const& tensors, string_map const& metadata = {});

/// Reads each tensor straight into its memory, so that the file is never held twice. Throws checkpoint_error (E05) for a file
/// that is not a whole safetensors file, out_of_memory_error (E09) for one that declares more than there is, file_error (E02).
safetensors_content load_safetensors(std::filesystem::path const& path);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/safetensors.ipp>
#endif
