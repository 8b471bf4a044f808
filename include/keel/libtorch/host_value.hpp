// Reads one number from a tensor. On the CPU it reads the memory directly. `item()` would dispatch, and on a GPU it synchronizes with all
// previously enqueued work.
#pragma once

#include <ATen/core/Tensor.h>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

/// Returns the value of a tensor with one element, real or bool.
inline double host_value(at::Tensor const& one) {
  if (one.device().is_cpu() && one.layout() == at::kStrided && one.numel() == 1) {
    switch (one.scalar_type()) {
      case at::kFloat:
        return static_cast<double>(*one.data_ptr<float>());
      case at::kDouble:
        return *one.data_ptr<double>();
      case at::kBFloat16:
        return static_cast<double>(static_cast<float>(*one.data_ptr<at::BFloat16>()));
      case at::kHalf:
        return static_cast<double>(static_cast<float>(*one.data_ptr<at::Half>()));
      case at::kBool:
        return *one.data_ptr<bool>() ? 1.0 : 0.0;
      default:
        break;
    }
  }
  return one.item<double>();
}

}  // namespace keel::inline KEEL_MODE
