// Computes the joint L2 norm of all gradients and finds non-finite ones, in one read. Partial sums are doubles over fixed
// chunks, so the result does not depend on the number of threads, and finite fp32 gradients never overflow. Doubles whose
// squares overflow are read again in units of the largest magnitude. Sparse gradients are coalesced first. joint_norm computes
// norms of other orders.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/core/finite.hpp>
#include <span>
#include <vector>

namespace keel::inline KEEL_MODE {

struct gradient_measure {
  double norm = 0.0;                  ///< NaN or infinite if a gradient is
  std::int64_t first_nonfinite = -1;  ///< index of the first tensor with a non-finite element; -1: none
  std::vector<double> squares;        ///< per tensor: the sum of its squares, in units of unit^2; 0 for an undefined one
  double unit = 1.0;                  ///< the largest magnitude if the sums of squares would overflow a double, else 1
  double norm_of(std::size_t tensor) const { return unit * std::sqrt(squares[tensor]); }
};

/// Returns the sums of squares of gradients on one device, in any dtype and layout that has a norm: one double each, in order,
/// on that device. Does not synchronize. Computes one tensor at a time: _foreach_norm has been wrong for lists with empty
/// tensors, and sums fp32 in fp32.
at::Tensor squares_on_device(std::span<at::Tensor const> gradients);

/// Measures floating-point gradients of any shape, including sparse ones; undefined tensors count as zero.
gradient_measure measure_gradients(std::span<at::Tensor const> all);

/// Returns the joint norm of an order of at least 1; infinity gives the largest magnitude. Undefined tensors count as zero. NaN
/// or infinite if an element is. For order 2 equal to measure_gradients' norm.
double joint_norm(std::span<at::Tensor const> tensors, double order);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/gradients/gradient_norm.ipp>
#endif
