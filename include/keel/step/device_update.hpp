// An update that the host does not wait for. Whether it takes place is decided on the device, against limits that the host
// knows from earlier updates; a few numbers come back, and the host reads them when the next update is due. Until then the
// device has that update's forward and backward pass to work on.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <cstddef>
#include <keel/core/outcome.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/step/gradients.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace keel {

/// What an update may be at most; infinity where nothing bounds it.
struct update_limits {
  double loss;
  double gradient_norm;
  double clip;  ///< larger norms are scaled to it
};

/// What became of an update on a device.
class device_result {
 public:
  struct figures {
    double loss;
    double gradient_norm;  ///< unscaled, before clipping
    bool applied;
  };

  /// `values`: loss, norm and whether it was applied, three doubles on the device. `squares`: one a gradient.
  device_result(at::Tensor values, at::Tensor squares, std::vector<std::size_t> parameters)
      : squares_(std::move(squares)), parameters_(std::move(parameters)) {
    if (values.device().is_cpu()) {
      host_ = std::move(values);
      return;
    }
    host_ = at::empty(values.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
    host_.copy_(values, /*non_blocking=*/true);
    c10::impl::VirtualGuardImpl const device(values.device().type());
    arrived_.emplace(values.device().type());
    arrived_->record(device.getStream(values.device()));
    device_ = std::move(values);
  }

  /// Waits until the update is through, and for nothing that was asked of the device after it.
  figures read() {
    // A query does not synchronise: work that came later goes on being launched and run.
    while (arrived_ && !arrived_->query()) std::this_thread::yield();
    arrived_.reset();
    double const* const values = host_.data_ptr<double>();
    return {values[0], values[1], values[2] != 0.0};
  }
  /// The first parameter whose gradient is not finite. Waits for the device: only a skipped update asks.
  std::optional<std::size_t> first_nonfinite() const {
    at::Tensor const squares = squares_.cpu();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!std::isfinite(squares.data_ptr<double>()[i])) return parameters_[i];
    }
    return std::nullopt;
  }

 private:
  at::Tensor squares_;
  std::vector<std::size_t> parameters_;
  at::Tensor host_;
  at::Tensor device_;  ///< lives until its copy has arrived
  std::optional<c10::Event> arrived_;
};

/// Why an update did not take place. `bad_gradient`: what a norm that is not finite is called.
inline reason skip_reason_of(double loss, double norm, update_limits const& limits, reason bad_gradient) {
  if (!std::isfinite(loss)) return reason::nonfinite_loss;
  if (!std::isfinite(norm)) return bad_gradient;
  return loss > limits.loss ? reason::loss_spike : reason::gradient_spike;
}

/// Whether and how an update takes place, as the host and as the device know it.
struct device_decision {
  device_result verdict;
  at::Tensor factor;      ///< on the gradients, a double scalar
  at::Tensor happens;     ///< bool scalar
  at::Tensor overflowed;  ///< bool scalar: the loss was finite and a gradient not
  at::Tensor norm;        ///< of the unscaled gradients, a double scalar
  at::Tensor unscaling;   ///< the factor without the clip
};

/// Checks and clips on the device, where nothing has changed yet. `loss`: the update's mean, a double scalar there.
inline device_decision decide_on_device(gradients<stage::unscaled> unscaled, at::Tensor const& loss,
                                        update_limits const& limits) {
  at::NoGradGuard no_grad;
  auto const open = detail::gradient_access::open(std::move(unscaled));
  std::vector<at::Tensor> defined;
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < open.parameters.size(); ++i) {
    at::Tensor const& gradient = open.parameters[i].grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    defined.push_back(gradient);
    parameters.push_back(i);
  }
  at::Tensor const squares = defined.empty() ? at::zeros({1}, loss.options()) : squares_on_device(defined);
  at::Tensor factor = at::scalar_tensor(open.factor, loss.options());
  if (open.device_scale.defined()) factor = factor / open.device_scale;
  at::Tensor const unscaling = factor;
  at::Tensor const norm = squares.sum().sqrt() * factor;
  at::Tensor const loss_is_finite = at::isfinite(loss);
  at::Tensor const norm_is_finite = at::isfinite(norm);
  at::Tensor const within = loss.le(limits.loss).logical_and(norm.le(limits.gradient_norm));
  at::Tensor const happens = loss_is_finite.logical_and(norm_is_finite).logical_and(within);
  if (std::isfinite(limits.clip)) factor = at::where(norm.gt(limits.clip), factor * (limits.clip / norm), factor);
  return {device_result(at::stack({loss, norm, happens.to(at::kDouble)}), squares, std::move(parameters)),
          factor,
          happens,
          loss_is_finite.logical_and(norm_is_finite.logical_not()),
          norm,
          unscaling};
}

}  // namespace keel
