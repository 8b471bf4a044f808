// The bodies of gradient_norm.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <keel/gradients/gradient_norm.hpp>

#include <keel/core/detail/body_begin.inc>

namespace keel {
namespace detail {

KEEL_BODY double sum_of_squares(double const* values, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return sum;
}

KEEL_BODY bool has_fast_norm(at::Tensor const& gradient) {
  auto const type = gradient.scalar_type();
  bool const known = type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  return known && gradient.device().is_cpu() && gradient.layout() == at::kStrided && gradient.is_non_overlapping_and_dense();
}

KEEL_BODY double chunk_sum(at::Tensor const& gradient, std::int64_t begin, std::int64_t count) {
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

KEEL_BODY at::Tensor elements_of(at::Tensor const& gradient) {
  if (!gradient.defined()) return gradient;
  at::Tensor const values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  bool const has_holes = values.device().is_cpu() && values.layout() == at::kStrided && !values.is_non_overlapping_and_dense();
  return has_holes ? values.contiguous() : values;
}

KEEL_BODY void measure_in_units(std::span<at::Tensor const> gradients, gradient_measure& measure) {
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

}  // namespace detail
}  // namespace keel

namespace keel {

KEEL_BODY at::Tensor squares_on_device(std::span<at::Tensor const> gradients) {
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (at::Tensor const& gradient : gradients) {
    norms.push_back(at::linalg_vector_norm(gradient, 2, c10::nullopt, false, at::kDouble));
  }
  return at::stack(norms).square();
}

KEEL_BODY gradient_measure measure_gradients(std::span<at::Tensor const> given) {
  at::NoGradGuard no_grad;
  gradient_measure measure;
  std::vector<at::Tensor> gradients;
  gradients.reserve(given.size());
  for (at::Tensor const& gradient : given) gradients.push_back(detail::elements_of(gradient));
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
  // The host waits for each device once.
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
    // A sum of squares that is not finite may be an overflow of finite doubles; only the elements tell.
    bool const suspicious = !std::isfinite(measure.squares[i]) && measure.first_nonfinite < 0;
    if (suspicious && host_value(at::isfinite(gradients[i]).all()) == 0.0)
      measure.first_nonfinite = static_cast<std::int64_t>(i);
    total += measure.squares[i];
  }
  measure.norm = std::sqrt(total);
  if (std::isinf(measure.norm) && measure.first_nonfinite < 0) detail::measure_in_units(gradients, measure);
  return measure;
}

KEEL_BODY double joint_norm(std::span<at::Tensor const> given, double order) {
  if (order == 2.0) return measure_gradients(given).norm;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  gradients.reserve(given.size());
  for (at::Tensor const& gradient : given) gradients.push_back(detail::elements_of(gradient));
  std::span<at::Tensor const> const all = gradients;
  if (order == 1.0) return detail::reduce(all, detail::sum_of_magnitudes{});
  double const largest = detail::reduce(all, detail::largest_magnitude{});
  if (std::isinf(order) || largest == 0.0 || !std::isfinite(largest)) return largest;
  return largest * std::pow(detail::reduce(all, detail::sum_of_powers{order, largest}), 1.0 / order);
}

}  // namespace keel

#include <keel/core/detail/body_end.inc>
