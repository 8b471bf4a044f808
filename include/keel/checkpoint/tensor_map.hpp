// Named tensors, the content of safetensors files.
#pragma once

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <map>
#include <string>

namespace keel::inline KEEL_MODE {

/// Tensors by name.
using tensor_map = std::map<std::string, at::Tensor>;
/// Strings by name.
using string_map = std::map<std::string, std::string>;

/// The content of a safetensors file.
struct safetensors_content {
  tensor_map tensors;   ///< on the CPU, contiguous; aliases share one at::Tensor
  string_map metadata;  ///< without the alias entries
  /// The dtype, such as F8_E4M3, of each tensor that was loaded as uint8 because this LibTorch lacks the type. The shape is the
  /// tensor's, with an extra last dimension if an element has several bytes. Packed F4 and F6 tensors have one dimension.
  string_map as_bytes;
};

}  // namespace keel::inline KEEL_MODE
