// Model FLOPs utilization (MFU): the floating-point operations that a model needs per second, divided by the device's peak.
//     mfu = operations per token * tokens per second / peak operations per second            (Chowdhery et al. 2022, PaLM, appendix B)
// Set the operations with options.operations_per_token (6 * parameters estimates a dense transformer without its attention), or
// count them once with trainer::count_operations. Set the peak with options.peak_operations_per_second (from the data sheet,
// for this precision). Otherwise it is measured with a matrix product.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <keel/libtorch/mode.hpp>

namespace at {
struct RecordFunction;
}

namespace keel::inline KEEL_MODE {

/// Returns the floating-point operations of a matrix product, convolution or attention kernel. A multiply-add counts as two.
/// Elementwise operations, such as activations, count as zero. Attention counts in full, even under a causal mask. Recurrent
/// layers that cuDNN runs as one operation count as zero.
double operations_of(at::RecordFunction const& operation);

/// Counts the operations that `run` executes on this thread and in the backward passes that it starts.
///     double const all = keel::count_operations([&] { loss_of(batch).backward(); });
double count_operations(std::function<void()> const& run);

/// Measures the peak throughput of square matrix products, in operations per second. The result is what the device and library
/// achieve, which is below the data sheet's value. `dtype` is the dtype that a run computes in. Takes up to half a second.
double measured_peak(c10::Device device, c10::ScalarType dtype);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/operation_count.ipp>
#endif
