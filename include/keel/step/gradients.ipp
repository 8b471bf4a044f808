// The bodies of gradients.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/_foreach_mul.h>
#include <torch/csrc/autograd/autograd.h>

#include <keel/step/gradients.hpp>

#include <keel/core/detail/body_begin.inc>

namespace keel {
namespace detail {

KEEL_BODY std::vector<at::Tensor> gradient_values::defined_gradients() const {
  std::vector<at::Tensor> result;
  result.reserve(parameters.size());
  for (at::Tensor const& parameter : parameters) {
    if (parameter.grad().defined()) result.push_back(parameter.grad());
  }
  return result;
}

KEEL_BODY void gradient_values::widen() {
  at::NoGradGuard no_grad;
  for (at::Tensor const& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && is_narrow(gradient)) gradient = gradient.to(at::kFloat);
  }
}

KEEL_BODY void gradient_values::narrow() {
  at::NoGradGuard no_grad;
  for (at::Tensor const& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && is_narrow(parameter)) gradient = gradient.to(parameter.scalar_type());
  }
}

KEEL_BODY void gradient_values::write() {
  if (factor == 1.0) return;
  at::NoGradGuard no_grad;
  auto defined = defined_gradients();
  for (at::Tensor& gradient : defined) {
    if (gradient.is_sparse()) gradient = gradient._values();
  }
  if (!defined.empty()) at::_foreach_mul_(defined, factor);
  factor = 1.0;
}

KEEL_BODY void gradient_values::coalesce() {
  at::NoGradGuard no_grad;
  for (at::Tensor const& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.is_sparse() && !gradient.is_coalesced()) gradient = gradient.coalesce();
  }
}

KEEL_BODY void gradient_values::require_dense() const {
  for (at::Tensor const& parameter : parameters) {
    if (parameter.grad().defined() && parameter.grad().layout() != at::kStrided) {
      throw error("E11", c10::str("the gradient of a parameter of shape ", parameter.sizes(),
                                  " is sparse, and this clip policy looks at every element. Use keel::clip::global_norm, or an "
                                  "embedding with sparse = false."));
    }
  }
}

KEEL_BODY std::vector<at::Tensor> gradient_values::unscaled_copies() const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  result.reserve(parameters.size());
  for (at::Tensor const& parameter : parameters)
    result.push_back(parameter.grad().defined() ? parameter.grad() * factor : at::Tensor());
  return result;
}

KEEL_BODY std::vector<at::Tensor> gradient_values::all_gradients() const {
  std::vector<at::Tensor> result;
  result.reserve(parameters.size());
  for (at::Tensor const& parameter : parameters) result.push_back(parameter.grad());
  return result;
}

}  // namespace detail
}  // namespace keel

namespace keel {

KEEL_BODY gradients<stage::scaled, accumulation::partial> begin_update(std::span<at::Tensor const> parameters, double scale,
                                                                       at::Tensor device_scale) {
  clear_gradients(parameters);
  return detail::gradient_access::make<gradients<stage::scaled, accumulation::partial>>(
      {.parameters = parameters, .scale = scale, .device_scale = std::move(device_scale)});
}

}  // namespace keel

#include <keel/core/detail/body_end.inc>
