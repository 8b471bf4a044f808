// One read over all gradients: their joint L2 norm and whether they are finite. Partial sums are doubles over fixed chunks,
// so the result does not depend on the number of threads, and a finite fp32 gradient never overflows it; doubles whose squares
// do are read again in units of the largest. A sparse gradient is measured by the values that it holds once it is coalesced.
// joint_norm measures other orders than 2, where that is asked for.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <keel/core/finite.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/optimizer/chunks.hpp>
#include <keel/optimizer/narrow_kernels.hpp>
#include <keel/optimizer/vector_kernels.hpp>
#include <limits>
#include <span>
#include <vector>

namespace keel {

struct gradient_measure {
  double norm = 0.0;                  ///< NaN or infinite if a gradient is
  std::int64_t first_nonfinite = -1;  ///< index of the first tensor with a non-finite element; -1: none
  std::vector<double> squares;        ///< a tensor: the sum of its squares, in units of unit^2; 0 for an undefined one
  double unit = 1.0;                  ///< the largest magnitude, where the sums of squares would overflow a double
  double norm_of(std::size_t tensor) const { return unit * std::sqrt(squares[tensor]); }
};

namespace detail {

template <class Narrow>
double sum_of_squares(Narrow const* values, std::int64_t count) {
  return sum_of_squares_narrow(values, count);
}

inline double sum_of_squares(float const* values, std::int64_t count) { return sum_of_squares_fp32(values, count); }

double sum_of_squares(double const* values, std::int64_t count);

bool has_fast_norm(at::Tensor const& gradient);

double chunk_sum(at::Tensor const& gradient, std::int64_t begin, std::int64_t count);

/// What holds a gradient's elements, on the CPU without holes: those of a sparse one each once.
at::Tensor elements_of(at::Tensor const& gradient);

/// Sums of squares in units of the largest magnitude, for finite elements whose plain sum overflows.
void measure_in_units(std::span<at::Tensor const> gradients, gradient_measure& measure);

}  // namespace detail

/// The sums of squares of gradients on one device, of any dtype and layout that has a norm: one double each there, in their
/// order, without the host waiting for them. One tensor at a time, because _foreach_norm has been wrong for lists with empty
/// tensors and sums fp32 in fp32.
at::Tensor squares_on_device(std::span<at::Tensor const> gradients);

/// Measures floating-point gradients of any shape, sparse ones too; undefined tensors count as zero.
gradient_measure measure_gradients(std::span<at::Tensor const> given);

namespace detail {

// What joint_norm makes of magnitudes: of one after the other on the host, and by LibTorch of a tensor of them elsewhere. NaN
// stays NaN, also where it is compared.

struct largest_magnitude {
  double add(double largest, double magnitude) const {
    return magnitude > largest || std::isnan(magnitude) ? magnitude : largest;
  }
  double join(double a, double b) const { return add(a, b); }
  double of(at::Tensor const& magnitudes) const {
    return host_value(at::linalg_vector_norm(magnitudes, std::numeric_limits<double>::infinity()));
  }
};
struct sum_of_magnitudes {
  double add(double sum, double magnitude) const { return sum + magnitude; }
  double join(double a, double b) const { return a + b; }
  double of(at::Tensor const& magnitudes) const { return host_value(at::linalg_vector_norm(magnitudes, 1)); }
};
/// In units of the largest, because powers of plain magnitudes overflow a double, or vanish from it.
struct sum_of_powers {
  double order;
  double unit;
  double add(double sum, double magnitude) const { return sum + std::pow(magnitude / unit, order); }
  double join(double a, double b) const { return a + b; }
  double of(at::Tensor const& magnitudes) const {
    return std::pow(host_value(at::linalg_vector_norm(magnitudes.div(unit), order)), order);
  }
};

template <class Element, class Reduction>
double reduce(Element const* values, std::int64_t count, Reduction const& reduction) {
  double lanes[8] = {};
  std::int64_t i = 0;
  auto const add = [&](int lane) { lanes[lane] = reduction.add(lanes[lane], std::abs(static_cast<double>(values[i + lane]))); };
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) add(lane);
  }
  for (int lane = 0; i + lane < count; ++lane) add(lane);
  double all = lanes[0];
  for (int lane = 1; lane < 8; ++lane) all = reduction.join(all, lanes[lane]);
  return all;
}

template <class Reduction>
double reduce(at::Tensor const& gradient, chunk const& piece, Reduction const& reduction) {
  switch (gradient.scalar_type()) {
    case at::kFloat:
      return reduce(gradient.data_ptr<float>() + piece.begin, piece.count, reduction);
    case at::kDouble:
      return reduce(gradient.data_ptr<double>() + piece.begin, piece.count, reduction);
    case at::kBFloat16:
      return reduce(gradient.data_ptr<at::BFloat16>() + piece.begin, piece.count, reduction);
    default:
      return reduce(gradient.data_ptr<at::Half>() + piece.begin, piece.count, reduction);
  }
}

/// Over all elements of what elements_of returned, in an order that no number of threads changes.
template <class Reduction>
double reduce(std::span<at::Tensor const> gradients, Reduction const& reduction) {
  chunk_list chunks;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined() && has_fast_norm(gradients[i])) chunks.add(i, gradients[i].numel());
  }
  std::vector<double> partial(chunks.size());
  chunks.for_each(
      [&](std::size_t index, chunk const& piece) { partial[index] = reduce(gradients[piece.tensor], piece, reduction); });
  for (at::Tensor const& gradient : gradients) {
    bool const left = gradient.defined() && gradient.numel() > 0 && !has_fast_norm(gradient);
    if (left) partial.push_back(reduction.of(gradient.abs().to(at::kDouble)));
  }
  double all = 0.0;
  for (double const one : partial) all = reduction.join(all, one);
  return all;
}

}  // namespace detail

/// The joint norm of any order from 1 on, infinity for the largest magnitude; undefined tensors count as zero. NaN or infinite
/// if an element is. Order 2 is measure_gradients' norm.
double joint_norm(std::span<at::Tensor const> given, double order);

}  // namespace keel

#if !__has_include(<keel_bodies_are_compiled>)
#include <keel/gradients/gradient_norm.ipp>
#endif
