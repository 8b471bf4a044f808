// Arithmetic of an update that is applied only if a bool on the device is true. A skipped update leaves parameters and moments
// unchanged, even if its gradients are NaN.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <keel/libtorch/mode.hpp>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

class conditional {
 public:
  /// `should_apply`: a bool scalar; `factor`: a double scalar on the same device.
  conditional(at::Tensor should_apply, at::Tensor factor) : happens_(std::move(should_apply)), factor_(std::move(factor)) {}

  /// Returns the gradient times the factor, converted to `type`; zero if the update is skipped.
  at::Tensor gradient(at::Tensor const& raw, at::ScalarType type) const {
    // For a zero-dimensional gradient the product with the factor is a double.
    return masked((raw.to(type) * factor_).to(type));
  }
  /// Returns the value, or zero if the update is skipped.
  at::Tensor masked(at::Tensor const& value) const { return at::where(happens_, value, at::zeros_like(value)); }
  /// Returns one of the two numbers as a double scalar.
  at::Tensor choose(double where_it_happens, double elsewhere) const {
    return at::where(happens_, at::full_like(factor_, where_it_happens), at::full_like(factor_, elsewhere));
  }
  at::Tensor const& should_apply() const { return happens_; }
  at::Tensor const& factor() const { return factor_; }

 private:
  at::Tensor happens_;
  at::Tensor factor_;
};

}  // namespace keel::detail::inline KEEL_MODE
