// Adds up mean losses by their weight.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <limits>

namespace keel::detail::inline KEEL_MODE {

/// The weighted sum of mean losses, on the host or, for a device-decided update, on the device.
class loss_accumulator {
 public:
  double weight = 0.0;

  void add(double mean, double of) {
    sum_ += mean * of;
    weight += of;
  }
  void add_on_device(at::Tensor const& mean, double of);
  void add(loss_accumulator const& other);
  /// Adds another mean as one term of a sum, regardless of its weight.
  void add_term(loss_accumulator const& other);

  bool is_on_device() const { return device_sum_.defined(); }
  /// Returns the weighted mean; NaN if only the device knows it.
  double mean() const { return device_sum_.defined() ? std::numeric_limits<double>::quiet_NaN() : sum_ / weight; }
  /// Returns the weighted mean as a double scalar.
  at::Tensor mean_on_device() const;

 private:
  double sum_ = 0.0;
  at::Tensor device_sum_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/core/loss_accumulator.ipp>
#endif
