// keel::attention(query, key, value): scaled dot-product attention (Vaswani et al. 2017) by the kernel that the recipe names.
//     at::Tensor mixed = keel::attention(query, key, value, {.causal = true, .dropout = is_training() ? 0.1 : 0.0});
//   math    softmax(query key^T / sqrt(width) + mask) value, written out: every LibTorch, memory by the square of the sequence.
//   fused   LibTorch's scaled_dot_product_attention, which LibTorch has from 2.0 on and which picks its own kernel: on the CPU
//           flash attention in fp32 and bf16 without dropout. Before 2.0 it is the math path, and attention_kernel says so.
// Without either by name it is fused where LibTorch has it. Alone, an attention_scope says which; a trainer or step does by its
// recipe and ladder. Results of the two differ by rounding, and only math can be differentiated twice.
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

/// How keel::attention attends.
struct attention_options {
  bool causal = false;   ///< a position looks at itself and those before it
  at::Tensor mask = {};  ///< added to the scores, broadcast to [.., queries, keys]; not together with causal
  double dropout = 0.0;  ///< share of the weights that are dropped; 0 in evaluation
};

/// The kernel that stands behind a policy here: math or fused.
inline attention_kind attention_kernel(attention_kind wanted) {
  bool const fuses = libtorch::has_fused_attention && wanted != attention_kind::math;
  return fuses ? attention_kind::fused : attention_kind::math;
}

}  // namespace keel::inline KEEL_MODE

namespace keel {

// A function and a class share the name on purpose, and so the function is in the namespace of the class; its options are of a mode.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/// `query` [.., queries, width], `key` [.., keys, width], `value` [.., keys, any], of one floating-point dtype; returns
/// [.., queries, any]. Throws data_error (E06) for shapes that do not fit, a mask that is no
/// floating-point tensor, or one together with causal.
at::Tensor attention(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value,
                     attention_options const& options = {});

#pragma GCC diagnostic pop

}  // namespace keel

#ifndef KEEL_COMPILED
#include <keel/attention/attention.ipp>
#endif
