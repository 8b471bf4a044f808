// Decides on the device whether to apply an update, without synchronizing the host. The device compares loss and norm with limits that the
// host computed from earlier updates. The host reads the outcome when the next update is due; until then the device runs that update's
// forward and backward passes.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <keel/core/outcome.hpp>
#include <keel/core/parameters.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/libtorch/device_reading.hpp>
#include <keel/step/gradients.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// Upper limits for an update; infinity means no limit.
struct update_limits {
  double loss;
  double gradient_norm;
  double clip;                                                 ///< gradients with a larger norm are scaled down to it
  double squarable = std::numeric_limits<double>::infinity();  ///< max_squarable_norm() if clip exceeds it
};

/// The largest gradient norm whose square does not overflow: an infinite second moment in Adam would stop its parameter from ever being
/// updated. Infinity for optimizers other than Adam, AdamW, RMSprop and Adagrad, and if all parameters are float64.
double max_squarable_norm(torch::optim::Optimizer& optimizer, parameter_list const& parameters);
std::string describe_unsquarable_norm(double norm);

/// The deferred result of an update on a device.
class device_result {
 public:
  struct figures {
    double loss;
    double gradient_norm;  ///< unscaled, before clipping
    bool applied;
    bool has_nonfinite_buffer;
    std::vector<double> extra;
  };

  /// `values`: doubles on the device: loss, norm, applied, has_nonfinite_buffer, then extra values. `squares`: the squared norm of each
  /// gradient. `parameters`: the parameter index of each gradient.
  device_result(at::Tensor values, at::Tensor squares, std::vector<std::size_t> parameters);

  /// Waits for the update, but not for work enqueued after it.
  figures read();
  /// Waits at most `longest`; false if the update has not completed.
  bool wait_for(std::chrono::milliseconds longest) const { return values_.wait_for(longest); }
  /// Index of the first parameter with a non-finite gradient. Synchronizes with the device; call only for a skipped update.
  std::optional<std::size_t> first_nonfinite() const;

 private:
  at::Tensor squares_;
  std::vector<std::size_t> parameters_;
  device_reading values_;
};

/// Returns why an update was skipped. `nonfinite_gradient_reason`: the reason to return for a non-finite norm.
reason skip_reason_of(double loss, double norm, update_limits const& limits, reason nonfinite_gradient_reason);

/// A decision on the device, with its deferred result for the host.
struct device_decision {
  device_result result;
  at::Tensor factor;        ///< factor on the gradients, for unscaling and clipping; double scalar
  at::Tensor should_apply;  ///< bool scalar
  at::Tensor overflowed;    ///< bool scalar: finite loss, non-finite gradient
  at::Tensor norm;          ///< norm of the unscaled gradients; double scalar
  at::Tensor unscaling;     ///< the factor without clipping; double scalar
};

/// Checks and clips on the device; modifies nothing. All tensors are on the device. `loss`: mean of the update, a double scalar.
/// `has_nonfinite_buffer`: bool scalar, may be undefined. `extra`: doubles that the host reads together with the outcome.
device_decision decide_on_device(gradients<stage::unscaled> unscaled, at::Tensor const& loss, update_limits const& limits,
                                 at::Tensor const& has_nonfinite_buffer = {}, std::vector<at::Tensor> const& extra = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/device_decision.ipp>
#endif
