// Definitions for loss_accumulator.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>

#include <keel/core/loss_accumulator.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void loss_accumulator::add_on_device(at::Tensor const& mean, double of) {
  at::Tensor const part = mean.detach().to(at::kDouble).reshape({}) * of;
  device_sum_ = device_sum_.defined() ? device_sum_ + part : part;
  weight += of;
}

KEEL_BODY void loss_accumulator::add(loss_accumulator const& other) {
  sum_ += other.sum_;
  weight += other.weight;
  if (!other.device_sum_.defined()) return;
  device_sum_ = device_sum_.defined() ? device_sum_ + other.device_sum_ : other.device_sum_;
}

KEEL_BODY void loss_accumulator::add_term(loss_accumulator const& other) {
  weight = 1.0;
  if (other.device_sum_.defined()) {
    at::Tensor const mean = other.mean_on_device();
    device_sum_ = device_sum_.defined() ? device_sum_ + mean : mean;
  } else {
    sum_ += other.mean();
  }
}

KEEL_BODY at::Tensor loss_accumulator::mean_on_device() const { return device_sum_ / weight; }

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
