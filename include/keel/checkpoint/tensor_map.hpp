// Tensors by name, which is what files hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <map>
#include <string>

namespace keel::inline KEEL_MODE {

/// Tensors by name.
using tensor_map = std::map<std::string, at::Tensor>;
/// Texts by name.
using string_map = std::map<std::string, std::string>;

/// What a safetensors file holds.
struct safetensors_content {
  tensor_map tensors;   ///< on the CPU, contiguous; an alias is the same at::Tensor
  string_map metadata;  ///< without the aliases
  /// The dtype, such as F8_E4M3, of each tensor that came as uint8 because this LibTorch has no type for it: in the tensor's
  /// shape and one more dimension for the bytes of an element of several, or in one dimension for the packed F4 and F6.
  string_map as_bytes;
};

}  // namespace keel::inline KEEL_MODE
