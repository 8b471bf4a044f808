// Arithmetic of an update that takes place only where a bool on the device is true: nothing of a skipped one reaches a
// parameter or a moment, NaN least of all.
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

  /// The gradient times the factor, in the type of `like`; zero where the update does not happen.
  at::Tensor gradient(at::Tensor const& raw, at::ScalarType type) const {
    // A gradient of no dimensions times the factor is a double.
    return masked((raw.to(type) * factor_).to(type));
  }
  /// The value, or zero where the update does not happen.
  at::Tensor masked(at::Tensor const& value) const { return at::where(happens_, value, at::zeros_like(value)); }
  /// One number or the other, as a double scalar.
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
