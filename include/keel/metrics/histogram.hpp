// How the elements of a tensor are distributed: what a run shows of gradients, weights and activations.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Counts in buckets: bucket i holds what is above the limit before it, `min` for the first, and at most `limits[i]`. Elements that
/// are not finite are counted apart, and are in no sum.
struct histogram {
  double min = 0.0;             ///< smallest finite element
  double max = 0.0;             ///< largest finite element
  double count = 0.0;           ///< finite elements
  double sum = 0.0;             ///< of finite elements
  double sum_of_squares = 0.0;  ///< of finite elements
  double nonfinite = 0.0;       ///< elements that are NaN or infinite
  std::vector<double> limits;   ///< upper ends of the buckets, ascending
  std::vector<double> counts;   ///< elements of each bucket
};

/// Of all elements of a dense or sparse tensor of any real dtype, on any device, in `buckets` of one width. The host reads two small
/// tensors, whatever the size. Throws error (E12) for fewer than one bucket and for complex and quantized tensors.
histogram histogram_of(at::Tensor const& values, std::int64_t buckets = 32);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/histogram.ipp>
#endif
