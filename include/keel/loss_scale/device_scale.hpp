// The loss scale of updates that are decided on the device: keel::grad_scaler's arithmetic on scalars there. The host's own
// scaler follows one update later with the same numbers and has the last word at the floor.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <keel/loss_scale/grad_scaler.hpp>
#include <keel/policy/loss_scale.hpp>

namespace keel::inline KEEL_MODE {

class device_scale {
 public:
  /// From where the host's scaler stands.
  device_scale(loss_scale::settings const& settings, grad_scaler const& scaler, at::Device device);

  /// A double scalar on the device.
  at::Tensor const& factor() const { return factor_; }

  /// Once an attempted update: bool scalars on the device, of which at most one is true. An update that was skipped for
  /// another reason changes nothing.
  void update(at::Tensor const& happened, at::Tensor const& overflowed);

 private:
  loss_scale::settings settings_;
  at::Tensor factor_;
  at::Tensor finite_updates_;
  at::Tensor overflows_left_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/loss_scale/device_scale.ipp>
#endif
