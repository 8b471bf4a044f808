// A tensor map in several safetensors files of bounded size, as the Hugging Face libraries write and read them:
//     model-00001-of-00003.safetensors ..     and     model.safetensors.index.json {metadata: {total_size}, weight_map}
// One that fits into a single file becomes model.safetensors without an index.
// Left out: removing files of an older set that the new one does not need; the index does not name them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/file_system.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// Writes `tensors` into `directory` under the name `stem`, each file with at most `max_bytes` of data, or with one tensor.
/// An older set stays whole until all of the new one is on the disk, which has to hold both for a while; from then until the
/// new index comes, last, there is none, so that no index ever leads into a mixture of both. Throws data_error (E05) for what
/// cannot be saved, error (E12) for a size below 1, a name that is a path, or a directory in the place of the index, file_error
/// (E02).
void save_sharded_safetensors(std::filesystem::path const& directory, std::string const& stem, tensor_map const& tensors,
                              std::uint64_t max_bytes, string_map const& metadata = {}, file_system& files = real_files());

/// All tensors that the index names, and their aliases, from the files beside it. Throws checkpoint_error (E05) for an index or
/// a file that is damaged or does not fit the other, out_of_memory_error (E09), file_error (E02).
safetensors_content load_sharded_safetensors(std::filesystem::path const& index_path);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/sharded_safetensors.ipp>
#endif
