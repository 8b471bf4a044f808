// Definitions for device_decision.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>

#include <algorithm>
#include <keel/step/device_decision.hpp>
#include <sstream>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY device_result::device_result(at::Tensor values, at::Tensor squares, std::vector<std::size_t> parameters)
    : squares_(std::move(squares)), parameters_(std::move(parameters)), values_(std::move(values)) {}

KEEL_BODY device_result::figures device_result::read() {
  at::Tensor const& read = values_.read();
  double const* const values = read.data_ptr<double>();
  return {values[0], values[1], values[2] != 0.0, values[3] != 0.0, std::vector<double>(values + 4, values + read.numel())};
}

KEEL_BODY std::optional<std::size_t> device_result::first_nonfinite() const {
  at::Tensor const squares = squares_.cpu();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!std::isfinite(squares.data_ptr<double>()[i])) return parameters_[i];
  }
  return std::nullopt;
}

KEEL_BODY double max_squarable_norm(torch::optim::Optimizer& optimizer, parameter_list const& parameters) {
  bool const squares = dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr ||
                       dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr ||
                       dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr ||
                       dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr;
  bool const are_double = std::all_of(parameters.tensors.begin(), parameters.tensors.end(),
                                      [](at::Tensor const& one) { return one.scalar_type() == at::kDouble; });
  return squares && !are_double ? 1.8e19 : std::numeric_limits<double>::infinity();
}

KEEL_BODY std::string describe_unsquarable_norm(double norm) {
  std::ostringstream message;
  message << "the gradient norm is " << norm << "; the square of a float32 above 1.8e19 overflows in the optimizer's state";
  return message.str();
}

KEEL_BODY reason skip_reason_of(double loss, double norm, update_limits const& limits, reason nonfinite_gradient_reason) {
  if (!std::isfinite(loss)) return reason::nonfinite_loss;
  if (!std::isfinite(norm)) return nonfinite_gradient_reason;
  if (loss > limits.loss) return reason::loss_spike;
  return norm > limits.gradient_norm ? reason::gradient_spike : reason::nonfinite_gradient;
}

KEEL_BODY device_decision decide_on_device(gradients<stage::unscaled> unscaled, at::Tensor const& loss,
                                           update_limits const& limits, at::Tensor const& has_nonfinite_buffer,
                                           std::vector<at::Tensor> const& extra) {
  at::NoGradGuard no_grad;
  auto const open = detail::gradient_access::open(std::move(unscaled));
  std::vector<at::Tensor> defined;
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < open.parameters.size(); ++i) {
    at::Tensor const& gradient = open.parameters[i].grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    defined.push_back(gradient);
    parameters.push_back(i);
  }
  at::Tensor const squares = defined.empty() ? at::zeros({1}, loss.options()) : squares_on_device(defined);
  at::Tensor factor = at::scalar_tensor(open.factor, loss.options());
  if (open.device_scale.defined()) factor = factor / open.device_scale;
  at::Tensor const unscaling = factor;
  at::Tensor const norm = squares.sum().sqrt() * factor;
  at::Tensor const loss_is_finite = at::isfinite(loss);
  at::Tensor const norm_is_finite = at::isfinite(norm);
  at::Tensor const within = loss.le(limits.loss).logical_and(norm.le(std::min(limits.gradient_norm, limits.squarable)));
  at::Tensor should_apply = loss_is_finite.logical_and(norm_is_finite).logical_and(within);
  if (has_nonfinite_buffer.defined()) should_apply = should_apply.logical_and(has_nonfinite_buffer.logical_not());
  at::Tensor const nonfinite_flag =
      has_nonfinite_buffer.defined() ? has_nonfinite_buffer.to(at::kDouble) : at::zeros({}, loss.options());
  if (std::isfinite(limits.clip)) factor = at::where(norm.gt(limits.clip), factor * (limits.clip / norm), factor);
  std::vector<at::Tensor> read{at::stack({loss, norm, should_apply.to(at::kDouble), nonfinite_flag})};
  for (at::Tensor const& one : extra) read.push_back(one.reshape({-1}));
  return {device_result(extra.empty() ? read.front() : at::cat(read), squares, std::move(parameters)),
          factor,
          should_apply,
          loss_is_finite.logical_and(norm_is_finite.logical_not()),
          norm,
          unscaling};
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
