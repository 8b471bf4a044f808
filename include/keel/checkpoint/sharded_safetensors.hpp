// Reads and writes named tensors in several safetensors files of bounded size, in the layout of the Hugging Face libraries:
//     model-00001-of-00003.safetensors ..     and     model.safetensors.index.json {metadata: {total_size}, weight_map}
// A set that fits into one file is written as model.safetensors without an index.
// Does not remove files of an older set that the new one does not need; the index does not name them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/file_system.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// Writes `tensors` into `directory` under the name `stem`. Each file has at most `max_bytes` of data, or a single tensor.
/// Writes all new files before it replaces the old set, so the disk needs space for both. During the replacement no index
/// exists, so an index never refers to a mix of both sets.
/// Throws data_error (E05) for tensors that cannot be saved. Throws error (E12) for a size below 1, a name that is a path, or a
/// directory in place of the index. Throws file_error (E02).
void save_sharded_safetensors(std::filesystem::path const& directory, std::string const& stem, tensor_map const& tensors,
                              std::uint64_t max_bytes, string_map const& metadata = {}, file_system& files = real_files());

/// Loads all tensors that the index names, and their aliases. Throws checkpoint_error (E05) if the index or a file is damaged
/// or they do not match. Throws out_of_memory_error (E09) and file_error (E02).
safetensors_content load_sharded_safetensors(std::filesystem::path const& index_path);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Throws checkpoint_error (E05).
[[noreturn]] void throw_damaged_index(std::filesystem::path const& index_path, std::string const& what);

/// Returns the file of each name in an index, in its directory. Throws as load_sharded_safetensors does.
string_map read_weight_map(std::filesystem::path const& index_path);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/sharded_safetensors.ipp>
#endif
