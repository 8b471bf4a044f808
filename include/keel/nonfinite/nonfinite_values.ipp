// Definitions for nonfinite_values.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/isposinf.h>
#include <ATen/record_function.h>

#include <keel/core/finite_bytes.hpp>
#include <keel/libtorch/host_value.hpp>
#include <keel/nonfinite/nonfinite_values.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY nonfinite_values nonfinite_values_of(at::Tensor const& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || tensor.layout() != at::kStrided || !tensor.has_storage()) return {};
  if (!at::isFloatingType(tensor.scalar_type()) && !at::isComplexType(tensor.scalar_type())) return {};
  at::RecordFunctionGuard const unobserved(/*is_enabled=*/false);
  at::NoGradGuard const no_grad;
  at::Tensor const values = tensor.detach();
  if (values.device().is_cpu() && values.is_non_overlapping_and_dense()) {
    auto const* const bytes = static_cast<char const*>(values.data_ptr());
    if (detail::is_finite(bytes, values.nbytes(), values.scalar_type())) return {};
  } else if (host_value(at::isfinite(values).all()) != 0.0) {
    return {};
  }
  nonfinite_values found;
  found.nan = host_value(at::isnan(values).any()) != 0.0;
  if (at::isComplexType(values.scalar_type())) {
    found.positive = !found.nan;
    return found;
  }
  found.positive = host_value(at::isposinf(values).any()) != 0.0;
  found.negative = host_value(at::isneginf(values).any()) != 0.0;
  return found;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
