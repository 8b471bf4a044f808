// keel::attention(query, key, value): scaled dot-product attention (Vaswani et al. 2017) by the kernel that the recipe names.
//     at::Tensor mixed = keel::attention(query, key, value, {.causal = true, .dropout = is_training() ? 0.1 : 0.0});
//   math    softmax(query key^T / sqrt(width) + mask) value, written out: every LibTorch, memory by the square of the sequence.
//   fused   LibTorch's scaled_dot_product_attention, which LibTorch has from 2.0 on and which picks its own kernel: on the CPU
//           flash attention in fp32 and bf16 without dropout. Before 2.0 it is the math path, and attention_kernel says so.
// Without either by name it is fused where LibTorch has it. Alone, an attention_scope says which; a trainer or step does by its
// recipe and ladder. Results of the two differ by rounding, and only math can be differentiated twice.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <cmath>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <limits>
#include <string>

namespace keel {

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

// A function and a class share the name on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

/// `query` [.., queries, width], `key` [.., keys, width], `value` [.., keys, any], of one floating-point dtype; returns
/// [.., queries, any]. Throws data_error (E06) for shapes that do not fit, a mask that is no
/// floating-point tensor, or one together with causal.
inline at::Tensor attention(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value,
                            attention_options const& options = {}) {
  bool const fits = query.dim() >= 2 && key.dim() == query.dim() && value.dim() == query.dim() &&
                    query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2);
  if (!fits) {
    throw data_error("E06",
                     c10::str("attention takes query [.., queries, width], key [.., keys, width] and value [.., keys, any], "
                              "and got ",
                              query.sizes(), ", ", key.sizes(), " and ", value.sizes(), "."));
  }
  if (options.causal && options.mask.defined()) {
    throw data_error("E06", "attention got a mask and causal = true. Put minus infinity into the mask, or leave it out.");
  }
  if (options.mask.defined() && !options.mask.is_floating_point()) {
    throw data_error("E06", c10::str("attention got a mask of ", options.mask.scalar_type(),
                                     ", and masks are added to the scores. Give it zeros, and minus infinity where a query "
                                     "may not look."));
  }
  if (attention_kernel(attention_scope::next()) == attention_kind::fused) {
    return libtorch::fused_attention(query, key, value,
                                     options.mask.defined() ? options.mask.to(query.scalar_type()) : options.mask,
                                     options.dropout, options.causal);
  }
  at::Tensor scores = at::matmul(query / std::sqrt(static_cast<double>(query.size(-1))), key.transpose(-2, -1));
  if (options.mask.defined()) scores = scores + options.mask.to(scores.scalar_type());
  if (options.causal) {
    double const never = -std::numeric_limits<double>::infinity();
    scores = scores + at::full({query.size(-2), key.size(-2)}, never, scores.options()).triu(1);
  }
  at::Tensor const weights = at::softmax(scores, -1);
  return at::matmul(options.dropout > 0.0 ? at::dropout(weights, options.dropout, true) : weights, value);
}

#pragma GCC diagnostic pop

}  // namespace keel
