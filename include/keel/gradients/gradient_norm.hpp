// One read over all gradients: their joint L2 norm and whether they are finite. Partial sums are doubles over fixed chunks,
// so the result does not depend on the number of threads, and a finite fp32 gradient never overflows it; doubles whose squares
// do are read again in units of the largest. A sparse gradient is measured by the values that it holds once it is coalesced.
// joint_norm measures other orders than 2, where that is asked for.
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
  std::vector<double> squares;        ///< a tensor: the sum of its squares, in units of unit^2; 0 for an undefined one
  double unit = 1.0;                  ///< the largest magnitude, where the sums of squares would overflow a double
  double norm_of(std::size_t tensor) const { return unit * std::sqrt(squares[tensor]); }
};

/// The sums of squares of gradients on one device, of any dtype and layout that has a norm: one double each there, in their
/// order, without the host waiting for them. One tensor at a time, because _foreach_norm has been wrong for lists with empty
/// tensors and sums fp32 in fp32.
at::Tensor squares_on_device(std::span<at::Tensor const> gradients);

/// Measures floating-point gradients of any shape, sparse ones too; undefined tensors count as zero.
gradient_measure measure_gradients(std::span<at::Tensor const> all);

/// The joint norm of any order from 1 on, infinity for the largest magnitude; undefined tensors count as zero. NaN or infinite
/// if an element is. Order 2 is measure_gradients' norm.
double joint_norm(std::span<at::Tensor const> tensors, double order);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/gradients/gradient_norm.ipp>
#endif
