// Model FLOP utilisation: the floating-point operations that a model needs for the tokens of a second, over what the device can do.
//     mfu = operations per token * tokens per second / peak operations per second            (Chowdhery et al. 2022, PaLM, appendix B)
// The operations are stated (options.operations_per_token; 6 * parameters is the usual estimate of a dense transformer without its
// attention) or counted once (trainer::count_operations); the peak is given (options.peak_operations_per_second: the data sheet's for
// this precision) or measured with a matrix product.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <keel/libtorch/mode.hpp>

namespace at {
struct RecordFunction;
}

namespace keel::inline KEEL_MODE {

/// Counts floating-point operations of matrix products, convolutions and attention kernels, a multiplication and an addition as two;
/// what has one operation an element, such as an activation, does not count. Attention counts in full, also under a causal mask.
/// Of recurrent layers that cuDNN runs as one operation nothing is counted.
double operations_of(at::RecordFunction const& operation);

/// Of everything that `run` computes on this thread and in the backward passes that it starts.
///     double const all = keel::count_operations([&] { loss_of(batch).backward(); });
double count_operations(std::function<void()> const& run);

/// The best of a few seconds' worth of square matrix products, in operations a second: what this device and library reach, which is
/// less than a data sheet says. `dtype` is what a run computes in. Takes up to half a second.
double measured_peak(c10::Device device, c10::ScalarType dtype);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/metrics/operation_count.ipp>
#endif
