// An update that the host does not wait for. Whether it takes place is decided on the device, against limits that the host
// knows from earlier updates; a few numbers come back, and the host reads them when the next update is due. Until then the
// device has that update's forward and backward pass to work on.
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

/// What an update may be at most; infinity where nothing bounds it.
struct update_limits {
  double loss;
  double gradient_norm;
  double clip;                                                 ///< larger norms are scaled to it
  double squarable = std::numeric_limits<double>::infinity();  ///< max_squarable_norm(), unless the clip is smaller
};

/// The largest gradient norm whose square does not overflow: an infinite second moment in Adam would stop that parameter from ever being
/// updated. Infinity for optimizers of LibTorch or keel without squared gradients, and for float64 parameters.
double max_squarable_norm(torch::optim::Optimizer& optimizer, parameter_list const& parameters);
std::string describe_unsquarable_norm(double norm);

/// What became of an update on a device.
class device_result {
 public:
  struct figures {
    double loss;
    double gradient_norm;  ///< unscaled, before clipping
    bool applied;
    bool has_nonfinite_buffer;
    std::vector<double> extra;
  };

  /// `values`: loss, norm, whether it was applied, whether it was spoiled, and what else is to be read with them, doubles on the device. `squares`: one a
  /// gradient.
  device_result(at::Tensor values, at::Tensor squares, std::vector<std::size_t> parameters);

  /// Waits until the update is through, and for nothing that was asked of the device after it.
  figures read();
  /// The same for so long; false: it is not.
  bool wait_for(std::chrono::milliseconds longest) const { return values_.wait_for(longest); }
  /// The first parameter whose gradient is not finite. Waits for the device: only a skipped update asks.
  std::optional<std::size_t> first_nonfinite() const;

 private:
  at::Tensor squares_;
  std::vector<std::size_t> parameters_;
  device_reading values_;
};

/// Why an update did not take place. `nonfinite_gradient_reason`: what a norm that is not finite is called.
reason skip_reason_of(double loss, double norm, update_limits const& limits, reason nonfinite_gradient_reason);

/// Whether and how an update takes place, as the host and as the device know it.
struct device_decision {
  device_result verdict;
  at::Tensor factor;        ///< on the gradients, a double scalar
  at::Tensor should_apply;  ///< bool scalar
  at::Tensor overflowed;    ///< bool scalar: the loss was finite and a gradient not
  at::Tensor norm;          ///< of the unscaled gradients, a double scalar
  at::Tensor unscaling;     ///< the factor without the clip
};

/// Checks and clips on the device, where nothing has changed yet. `loss`: the update's mean, a double scalar there. `has_nonfinite_buffer`: a bool scalar
/// there, where something else than loss and gradients is not finite. `extra`: doubles there, which the host reads with the verdict.
device_decision decide_on_device(gradients<stage::unscaled> unscaled, at::Tensor const& loss, update_limits const& limits,
                                 at::Tensor const& has_nonfinite_buffer = {}, std::vector<at::Tensor> const& extra = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/device_decision.ipp>
#endif
