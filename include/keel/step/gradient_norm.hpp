// One read over all gradients: their joint L2 norm and whether they are finite. Partial sums are doubles over fixed chunks,
// so the result does not depend on the number of threads, and a finite fp32 gradient never overflows it.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace keel {

struct gradient_measure {
  double norm = 0.0;                  ///< NaN or infinite if a gradient is
  std::int64_t first_nonfinite = -1;  ///< index of the first tensor with a non-finite element; -1: none
};

namespace detail {

inline constexpr std::int64_t norm_chunk = 32768;

template <class Scalar>
double sum_of_squares(Scalar const* values, std::int64_t count) {
  // Eight independent sums let the compiler keep several additions in flight.
  double sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      double const value = static_cast<double>(static_cast<float>(values[i + lane]));
      sums[lane] += value * value;
    }
  }
  double sum = 0.0;
  for (; i < count; ++i) {
    double const value = static_cast<double>(static_cast<float>(values[i]));
    sum += value * value;
  }
  for (double lane : sums) sum += lane;
  return sum;
}

inline double sum_of_squares(double const* values, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return sum;
}

inline bool has_fast_norm(at::Tensor const& gradient) {
  auto const type = gradient.scalar_type();
  bool const known = type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  return known && gradient.device().is_cpu() && gradient.layout() == at::kStrided && gradient.is_non_overlapping_and_dense();
}

inline double chunk_sum(at::Tensor const& gradient, std::int64_t begin, std::int64_t count) {
  switch (gradient.scalar_type()) {
    case at::kFloat:
      return sum_of_squares(gradient.data_ptr<float>() + begin, count);
    case at::kDouble:
      return sum_of_squares(gradient.data_ptr<double>() + begin, count);
    case at::kBFloat16:
      return sum_of_squares(gradient.data_ptr<at::BFloat16>() + begin, count);
    default:
      return sum_of_squares(gradient.data_ptr<at::Half>() + begin, count);
  }
}

inline double fast_sum_of_squares(at::Tensor const& gradient) {
  std::int64_t const count = gradient.numel();
  std::int64_t const chunks = (count + norm_chunk - 1) / norm_chunk;
  if (chunks <= 1) return chunk_sum(gradient, 0, count);
  std::vector<double> partial(static_cast<std::size_t>(chunks));
  at::parallel_for(0, chunks, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t chunk = from; chunk < to; ++chunk) {
      std::int64_t const begin = chunk * norm_chunk;
      partial[static_cast<std::size_t>(chunk)] = chunk_sum(gradient, begin, std::min(norm_chunk, count - begin));
    }
  });
  double sum = 0.0;
  for (double one : partial) sum += one;
  return sum;
}

inline double general_sum_of_squares(at::Tensor const& gradient) {
  double const norm = at::linalg_vector_norm(gradient, 2, c10::nullopt, false, at::kDouble).item<double>();
  return norm * norm;
}

}  // namespace detail

/// Measures dense floating-point gradients of any shape; undefined tensors count as zero.
inline gradient_measure measure_gradients(std::span<at::Tensor const> gradients) {
  at::NoGradGuard no_grad;
  gradient_measure measure;
  double total = 0.0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor const& gradient = gradients[i];
    if (!gradient.defined() || gradient.numel() == 0) continue;
    double const sum =
        detail::has_fast_norm(gradient) ? detail::fast_sum_of_squares(gradient) : detail::general_sum_of_squares(gradient);
    // A sum of squares that is not finite may be an overflow of finite doubles; only the elements tell.
    if (!std::isfinite(sum) && measure.first_nonfinite < 0 && !at::isfinite(gradient).all().item<bool>()) {
      measure.first_nonfinite = static_cast<std::int64_t>(i);
    }
    total += sum;
  }
  measure.norm = std::sqrt(total);
  return measure;
}

}  // namespace keel
