// Definitions for device_scale.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <keel/loss_scale/device_scale.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY device_scale::device_scale(loss_scale::settings const& settings, grad_scaler const& scaler, at::Device device)
    : settings_(settings) {
  auto const options = at::TensorOptions().dtype(at::kDouble).device(device);
  factor_ = at::scalar_tensor(scaler.factor(), options);
  finite_updates_ = at::scalar_tensor(static_cast<double>(scaler.finite_updates()), options);
  overflows_left_ = at::scalar_tensor(static_cast<double>(scaler.overflows_left()), options);
}

KEEL_BODY void device_scale::update(at::Tensor const& happened, at::Tensor const& overflowed) {
  if (settings_.kind != loss_scale::kind::dynamic) return;
  at::NoGradGuard no_grad;
  auto const largest = static_cast<double>(std::numeric_limits<float>::max());
  at::Tensor const left = overflows_left_ - 1.0;
  at::Tensor const backs_off = overflowed.logical_and(left.le(0.0));
  at::Tensor const counted = at::where(overflowed, finite_updates_ * 0.0, finite_updates_ + happened.to(at::kDouble));
  at::Tensor const grows = happened.logical_and(counted.ge(static_cast<double>(settings_.growth_interval)));
  at::Tensor const grown = factor_ * settings_.growth;
  at::Tensor const larger = at::where(grows.logical_and(grown.le(largest)), grown, factor_);
  factor_ = at::where(backs_off, (factor_ * settings_.backoff).clamp_min(settings_.floor), larger);
  finite_updates_ = at::where(grows, counted * 0.0, counted);
  overflows_left_ = at::where(overflowed, left.clamp_min(0.0),
                              at::where(grows, left * 0.0 + static_cast<double>(settings_.hysteresis), overflows_left_));
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
