// keel::attention(query, key, value): scaled dot-product attention (Vaswani et al. 2017), with the kernel that the recipe
// selects.
//     at::Tensor mixed = keel::attention(query, key, value, {.causal = true, .dropout = is_training() ? 0.1 : 0.0});
//   math    softmax(query key^T / sqrt(width) + mask) value, step by step: any LibTorch; memory quadratic in the sequence length.
//   fused   LibTorch's scaled_dot_product_attention (2.0 or later), which selects its own kernel: on the CPU flash attention in
//           fp32 and bf16 without dropout. Before 2.0 the math path is used, and attention_kernel returns math.
// By default it is fused if LibTorch supports that. Outside a recipe, an attention_scope selects the kernel; a trainer or step
// uses its recipe and ladder. The results of the two kernels differ by rounding, and only math supports double backward.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cmath>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <limits>
#include <string>

namespace keel::inline KEEL_MODE {

/// Options of keel::attention.
struct attention_options {
  bool causal = false;   ///< each position attends to itself and earlier ones
  at::Tensor mask = {};  ///< added to the scores, broadcast to [.., queries, keys]; not allowed with causal
  double dropout = 0.0;  ///< probability with which a weight is dropped; 0 in evaluation
};

/// Returns the kernel that is used for a policy with this LibTorch: math or fused.
inline attention_kind attention_kernel(attention_kind wanted) {
  bool const fuses = libtorch::has_fused_attention && wanted != attention_kind::math;
  return fuses ? attention_kind::fused : attention_kind::math;
}

}  // namespace keel::inline KEEL_MODE

namespace keel {

// A function and a class deliberately share the name, so the function is in the namespace of the class; its options are in that
// of the mode.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/// `query` [.., queries, width], `key` [.., keys, width], `value` [.., keys, any], of one floating-point dtype; returns [..,
/// queries, any]. Throws data_error (E06) for mismatched shapes, a mask that is not a floating-point tensor, or a mask together
/// with causal.
at::Tensor attention(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value,
                     attention_options const& options = {});

#pragma GCC diagnostic pop

}  // namespace keel

#ifndef KEEL_COMPILED
#include <keel/attention/attention.ipp>
#endif
