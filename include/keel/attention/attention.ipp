// Definitions for attention.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <keel/attention/attention.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel {

KEEL_BODY at::Tensor attention(at::Tensor const& query, at::Tensor const& key, at::Tensor const& value,
                               attention_options const& options) {
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

}  // namespace keel

#include <keel/libtorch/detail/body_end.inc>
