// Maps a safetensors file into memory. Pages are read on first use, and processes share one copy. Use it for weights that are
// inspected or copied from. Runs load checkpoints with load_safetensors, which reports a read error as an exception. Truncating
// a mapped file ends the process with SIGBUS.
#pragma once

#include <filesystem>
#include <keel/checkpoint/tensor_map.hpp>

namespace keel::inline KEEL_MODE {

/// Maps the file and returns its tensors. The mapping lives as long as any of them. A tensor whose data is not aligned to its
/// element size is copied; keel never writes such files. Throws checkpoint_error (E05) if the file is not a complete
/// safetensors file. Throws out_of_memory_error (E09) and file_error (E02).
safetensors_content map_safetensors(std::filesystem::path const& path);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/mapped_safetensors.ipp>
#endif
