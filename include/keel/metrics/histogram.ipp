// Definitions for histogram.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cstddef>
#include <keel/core/error.hpp>
#include <keel/metrics/histogram.hpp>
#include <limits>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY histogram histogram_of(at::Tensor const& values, std::int64_t buckets) {
  if (buckets < 1) {
    throw error("E12", c10::str("histogram_of was called for ", buckets, " buckets. Ask for one or more."));
  }
  if (!values.defined() || values.is_complex() || values.is_quantized()) {
    throw error("E12", "histogram_of was called with a tensor that is undefined, complex or quantized. Pass its real values.");
  }
  at::NoGradGuard const no_grad;
  at::Tensor flat = values.detach();
  if (flat.is_sparse()) flat = flat.coalesce()._values();
  flat = flat.reshape({-1}).to(at::kDouble);
  histogram found;
  if (flat.numel() == 0) return found;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  // Without indexing by a mask, which would synchronize with the device.
  at::Tensor const is_finite = at::isfinite(flat);
  at::Tensor const kept = at::where(is_finite, flat, at::zeros_like(flat));
  at::Tensor const figures = at::stack({at::where(is_finite, flat, at::full_like(flat, infinity)).min(),
                                        at::where(is_finite, flat, at::full_like(flat, -infinity)).max(),
                                        is_finite.sum().to(at::kDouble), kept.sum(), kept.square().sum()})
                                 .cpu();
  auto const* const figure = figures.data_ptr<double>();
  found.count = figure[2];
  found.nonfinite = static_cast<double>(flat.numel()) - found.count;
  if (found.count == 0.0) return found;
  found.min = figure[0];
  found.max = figure[1];
  found.sum = figure[3];
  found.sum_of_squares = figure[4];
  // Computed from halves, because the full range overflows.
  double const half_width = (found.max / 2 - found.min / 2) / static_cast<double>(buckets);
  if (!(half_width > 0.0)) {
    found.limits = {found.max};
    found.counts = {found.count};
    return found;
  }
  at::Tensor const place =
      kept.div(2).sub(found.min / 2).div(half_width).ceil().sub(1).clamp(0, static_cast<double>(buckets - 1)).to(at::kLong);
  // Non-finite elements are counted in an extra bucket, which is discarded.
  at::Tensor const counts =
      at::bincount(at::where(is_finite, place, at::full_like(place, buckets)), {}, buckets + 1).to(at::kDouble).cpu();
  auto const* const count = counts.data_ptr<double>();
  for (std::int64_t i = 0; i < buckets; ++i) {
    found.limits.push_back(i + 1 == buckets ? found.max : found.min + 2 * half_width * static_cast<double>(i + 1));
    found.counts.push_back(count[i]);
  }
  return found;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
