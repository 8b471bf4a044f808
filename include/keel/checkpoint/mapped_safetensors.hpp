// A safetensors file as tensors that are the file: nothing is read before it is used, and several processes share one copy in
// memory. For weights that are looked at or copied from; a run loads its checkpoints with load_safetensors, which finds an
// error of the disk while it can still be named. A file that becomes shorter while it is mapped ends the process (SIGBUS).
#pragma once

#include <filesystem>
#include <keel/checkpoint/tensor_map.hpp>

namespace keel::inline KEEL_MODE {

/// The tensors live as long as one of them does, and so does the mapping. One whose bytes are not aligned to its elements,
/// which keel never writes, is copied. Throws checkpoint_error (E05) for a file that is not a whole safetensors file,
/// out_of_memory_error (E09), file_error (E02).
safetensors_content map_safetensors(std::filesystem::path const& path);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/mapped_safetensors.ipp>
#endif
