// Histograms of tensor elements, for gradients, weights and activations.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Bucket i counts elements above the previous limit (from `min` for the first) and at most `limits[i]`. Non-finite elements
/// are counted separately and excluded from the sums.
struct histogram {
  double min = 0.0;             ///< smallest finite element
  double max = 0.0;             ///< largest finite element
  double count = 0.0;           ///< finite elements
  double sum = 0.0;             ///< of finite elements
  double sum_of_squares = 0.0;  ///< of finite elements
  double nonfinite = 0.0;       ///< number of NaN or infinite elements
  std::vector<double> limits;   ///< upper bounds of the buckets, ascending
  std::vector<double> counts;   ///< number of elements per bucket
};

/// Returns the histogram of a dense or sparse tensor of any real dtype, on any device, with `buckets` of equal width. The host
/// reads two small tensors, regardless of the size. Throws error (E12) for fewer than one bucket and for complex and quantized
/// tensors.
histogram histogram_of(at::Tensor const& values, std::int64_t buckets = 32);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/histogram.ipp>
#endif
