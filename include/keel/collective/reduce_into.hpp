// Elementwise reductions in rank order.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <keel/collective/transport.hpp>
#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

inline void reduce_into(at::Tensor& so_far, at::Tensor const& one, reduction_kind how) {
  switch (how) {
    case reduction_kind::sum:
      so_far.add_(one);
      break;
    case reduction_kind::min:
      so_far.copy_(at::minimum(so_far, one));
      break;
    case reduction_kind::max:
      so_far.copy_(at::maximum(so_far, one));
      break;
  }
}

/// Reduces over the first dimension, row by row in order.
inline at::Tensor reduce_rows(at::Tensor const& rows, reduction_kind how) {
  at::Tensor so_far = rows[0].clone();
  for (std::int64_t row = 1; row < rows.size(0); ++row) reduce_into(so_far, rows[row], how);
  return so_far;
}

}  // namespace keel::detail::inline KEEL_MODE
