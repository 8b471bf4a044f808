// Definitions for gradient_norm.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <keel/core/finite.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/optimizer/chunks.hpp>
#include <keel/optimizer/narrow_kernels.hpp>
#include <keel/optimizer/vector_kernels.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

template <class Narrow>
double sum_of_squares(Narrow const* values, std::int64_t count) {
  return sum_of_squares_narrow(values, count);
}

inline double sum_of_squares(float const* values, std::int64_t count) { return sum_of_squares_fp32(values, count); }

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

/// Returns a tensor with the gradient's elements, dense on the CPU. A sparse gradient is coalesced.
inline at::Tensor elements_of(at::Tensor const& gradient) {
  if (!gradient.defined()) return gradient;
  at::Tensor const values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  bool const has_holes = values.device().is_cpu() && values.layout() == at::kStrided && !values.is_non_overlapping_and_dense();
  return has_holes ? values.contiguous() : values;
}

/// Sums squares in units of the largest magnitude, for finite elements whose plain sum overflows.
inline void measure_in_units(std::span<at::Tensor const> gradients, gradient_measure& measure) {
  std::vector<at::Tensor> wide;
  measure.unit = 0.0;
  for (at::Tensor const& gradient : gradients) {
    bool const any = gradient.defined() && gradient.numel() > 0;
    wide.push_back(any ? gradient.detach().to(at::kCPU, at::kDouble).contiguous() : at::Tensor());
    if (any) measure.unit = std::max(measure.unit, wide.back().abs().max().item<double>());
  }
  double total = 0.0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    double sum = 0.0;
    for (std::int64_t at = 0; wide[i].defined() && at < wide[i].numel(); ++at) {
      double const one = wide[i].data_ptr<double>()[at] / measure.unit;
      sum += one * one;
    }
    measure.squares[i] = sum;
    total += sum;
  }
  measure.norm = measure.unit * std::sqrt(total);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY at::Tensor squares_on_device(std::span<at::Tensor const> gradients) {
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (at::Tensor const& gradient : gradients) {
    norms.push_back(at::linalg_vector_norm(gradient, 2, c10::nullopt, false, at::kDouble));
  }
  return at::stack(norms).square();
}

KEEL_BODY gradient_measure measure_gradients(std::span<at::Tensor const> all) {
  at::NoGradGuard no_grad;
  gradient_measure measure;
  std::vector<at::Tensor> gradients;
  gradients.reserve(all.size());
  for (at::Tensor const& gradient : all) gradients.push_back(detail::elements_of(gradient));
  measure.squares.resize(gradients.size());
  detail::chunk_list chunks;
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor const& gradient = gradients[i];
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (detail::has_fast_norm(gradient)) {
      chunks.add(i, gradient.numel());
    } else {
      others.push_back(i);
    }
  }
  // Synchronizes once per device.
  while (!others.empty()) {
    auto const device = gradients[others.front()].device();
    auto const elsewhere =
        std::stable_partition(others.begin(), others.end(), [&](std::size_t i) { return gradients[i].device() == device; });
    std::vector<at::Tensor> here;
    for (auto at = others.begin(); at != elsewhere; ++at) here.push_back(gradients[*at]);
    at::Tensor const squares = squares_on_device(here).cpu();
    for (std::size_t i = 0; i < here.size(); ++i) measure.squares[others[i]] = squares.data_ptr<double>()[i];
    others.erase(others.begin(), elsewhere);
  }
  std::vector<double> partial(chunks.size());
  chunks.for_each([&](std::size_t index, detail::chunk const& piece) {
    partial[index] = detail::chunk_sum(gradients[piece.tensor], piece.begin, piece.count);
  });
  for (std::size_t index = 0; index < partial.size(); ++index) measure.squares[chunks[index].tensor] += partial[index];

  double total = 0.0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    // A non-finite sum of squares may be an overflow of finite doubles, so check the elements.
    bool const suspicious = !std::isfinite(measure.squares[i]) && measure.first_nonfinite < 0;
    if (suspicious && host_value(at::isfinite(gradients[i]).all()) == 0.0)
      measure.first_nonfinite = static_cast<std::int64_t>(i);
    total += measure.squares[i];
  }
  measure.norm = std::sqrt(total);
  if (std::isinf(measure.norm) && measure.first_nonfinite < 0) detail::measure_in_units(gradients, measure);
  return measure;
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

// Reductions for joint_norm: over single magnitudes on the host, and by LibTorch for tensors elsewhere. NaN propagates, also
// through comparisons.

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
/// In units of the largest magnitude, because powers of plain magnitudes may overflow or underflow a double.
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

/// Reduces all elements of gradients returned by elements_of, in an order that does not depend on the number of threads.
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

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY double joint_norm(std::span<at::Tensor const> tensors, double order) {
  if (order == 2.0) return measure_gradients(tensors).norm;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  gradients.reserve(tensors.size());
  for (at::Tensor const& gradient : tensors) gradients.push_back(detail::elements_of(gradient));
  std::span<at::Tensor const> const all = gradients;
  if (order == 1.0) return detail::reduce(all, detail::sum_of_magnitudes{});
  double const largest = detail::reduce(all, detail::largest_magnitude{});
  if (std::isinf(order) || largest == 0.0 || !std::isfinite(largest)) return largest;
  return largest * std::pow(detail::reduce(all, detail::sum_of_powers{order, largest}), 1.0 / order);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
