// The gradients of one update as a value whose type says how far it has come:
//
//     gradients<scaled, partial>   add(loss, weight) ..        one micro-batch after the other
//       .complete()             -> gradients<scaled, complete>
//       .unscale()              -> gradients<unscaled>
//       .check()                -> gradients<checked>, or where the first non-finite element is
//       .clip<Policy>(state)    -> gradients<clipped>
//       .step(optimizer)        -> gradients<stepped>          nothing can be done with it any more
//
// A call out of order does not compile, and the error is the rule's sentence. Every call consumes the value before it.
//
// Unscaling and clipping by norm only multiply, so they collect one factor, and the gradients in memory stay as the backward
// pass left them. An update engine (keel::adamw, adam, sgd) applies the factor while it updates; before any other optimizer's
// step, and before a clip policy that looks at elements, it is written into the gradients. write() does it at any time.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <keel/clip/clipping.hpp>
#include <keel/core/error.hpp>
#include <keel/gradients/gradient_memory.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <keel/rule/refuse_call.hpp>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace keel {

namespace stage {
struct scaled {};
struct unscaled {};
struct checked {};
struct clipped {};
struct stepped {};
}  // namespace stage
namespace window {
struct partial {};
struct complete {};
}  // namespace window

/// Where the first non-finite gradient is.
struct nonfinite_gradient {
  std::size_t parameter;  ///< index into the parameters
  double norm;
};

template <class Stage, class Window = window::complete>
class gradients;

namespace detail {

/// What every stage hands to the next.
struct gradient_window {
  std::span<at::Tensor const> parameters;
  double scale = 1.0;         ///< of the loss
  at::Tensor device_scale{};  ///< of the loss too, known on the device alone; undefined: none
  double first_weight = 0.0;  ///< the unit in which the other micro-batches' weights count
  double total_weight = 0.0;  ///< in units of the first
  double factor = 1.0;        ///< that the gradients in memory still lack
  double norm = 0.0;
  bool clipped = false;
  std::vector<double> norms{};  ///< a parameter: the L2 norm of its unscaled gradient

  std::vector<at::Tensor> defined_gradients() const {
    std::vector<at::Tensor> result;
    result.reserve(parameters.size());
    for (at::Tensor const& parameter : parameters) {
      if (parameter.grad().defined()) result.push_back(parameter.grad());
    }
    return result;
  }
  /// Gradients of bf16 and fp16 parameters from here on add up in fp32: in eight bits, small ones would be lost beside a large
  /// sum.
  void widen() {
    at::NoGradGuard no_grad;
    for (at::Tensor const& parameter : parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined() && is_narrow(gradient)) gradient = gradient.to(at::kFloat);
    }
  }
  /// For an optimizer that expects gradients of the parameters' own dtype.
  void narrow() {
    at::NoGradGuard no_grad;
    for (at::Tensor const& parameter : parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined() && is_narrow(parameter)) gradient = gradient.to(parameter.scalar_type());
    }
  }
  void write() {
    if (factor == 1.0) return;
    at::NoGradGuard no_grad;
    auto defined = defined_gradients();
    for (at::Tensor& gradient : defined) {
      if (gradient.is_sparse()) gradient = gradient._values();
    }
    if (!defined.empty()) at::_foreach_mul_(defined, factor);
    factor = 1.0;
  }
  /// Adds up what a sparse gradient holds of one row more than once.
  void coalesce() {
    at::NoGradGuard no_grad;
    for (at::Tensor const& parameter : parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (gradient.defined() && gradient.is_sparse() && !gradient.is_coalesced()) gradient = gradient.coalesce();
    }
  }
  /// Throws error (E11) for a sparse gradient, of which a clip policy that looks at elements cannot take a look at each.
  void require_dense() const {
    for (at::Tensor const& parameter : parameters) {
      if (parameter.grad().defined() && parameter.grad().layout() != at::kStrided) {
        throw error("E11", c10::str("the gradient of a parameter of shape ", parameter.sizes(),
                                    " is sparse, and this clip policy looks at every element. Use keel::clip::global_norm, or an "
                                    "embedding with sparse = false."));
      }
    }
  }
  /// The gradients as they would be with the factor in them; those in memory stay.
  std::vector<at::Tensor> unscaled_copies() const {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> result;
    result.reserve(parameters.size());
    for (at::Tensor const& parameter : parameters)
      result.push_back(parameter.grad().defined() ? parameter.grad() * factor : at::Tensor());
    return result;
  }
  /// One entry a parameter, undefined where it has no gradient, so that indices stay those of the parameters.
  std::vector<at::Tensor> all_gradients() const {
    std::vector<at::Tensor> result;
    result.reserve(parameters.size());
    for (at::Tensor const& parameter : parameters) result.push_back(parameter.grad());
    return result;
  }
};

struct gradient_access;

template <class Stage, class Window>
class gradients_base {
 public:
  gradients_base(gradients_base&&) = default;
  gradients_base& operator=(gradients_base&&) = default;

 protected:
  friend gradient_access;
  explicit gradients_base(gradient_window window) : window_(std::move(window)) {}
  gradient_window window_;
};

struct gradient_access {
  template <class Gradients>
  static gradient_window open(Gradients taken) {
    return std::move(taken.window_);
  }
  template <class Gradients>
  static Gradients make(gradient_window window) {
    return Gradients(std::move(window));
  }
};

}  // namespace detail

// The last stage comes first, so that each can return the next.

template <>
class gradients<stage::stepped> : public detail::gradients_base<stage::stepped, window::complete> {
 public:
  double norm() const { return window_.norm; }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::refuse_call<rule::O03, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(window_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

template <>
class gradients<stage::clipped> : public detail::gradients_base<stage::clipped, window::complete> {
 public:
  double norm() const { return window_.norm; }
  /// The clip policy changed the gradients, or the factor that is still to come into them.
  bool clipped() const { return window_.clipped; }
  /// Writes the factor that is still to come into the gradients, rounded to their dtype.
  void write() { window_.write(); }
  /// What an update engine allocates, while nothing has changed yet; step does it where nobody did.
  void prepare(torch::optim::Optimizer& optimizer) {
    engine_ = dynamic_cast<update_engine*>(&optimizer);
    if (engine_ != nullptr) engine_->prepare();
  }
  gradients<stage::stepped> step(torch::optim::Optimizer& optimizer) && {
    if (engine_ == nullptr) prepare(optimizer);
    if (engine_ != nullptr) {
      engine_->update_with(window_.factor);
    } else {
      window_.write();
      window_.narrow();
      optimizer.step();
    }
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(window_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
  update_engine* engine_ = nullptr;  ///< that is prepared
};

template <>
class gradients<stage::checked> : public detail::gradients_base<stage::checked, window::complete> {
 public:
  /// The joint L2 norm, before clipping.
  double norm() const { return window_.norm; }
  /// The gradients divided by the loss scale and the weight, in separate tensors unless that is what lies in memory; an
  /// undefined one for a parameter without a gradient.
  std::vector<at::Tensor> unscaled() const { return window_.factor == 1.0 ? window_.all_gradients() : window_.unscaled_copies(); }
  /// The L2 norm of one parameter's gradient, before clipping; 0 without a gradient.
  double norm_of(std::size_t parameter) const { return window_.norms[parameter]; }
  /// Writes the factor that is still to come into the gradients, rounded to their dtype.
  void write() { window_.write(); }

  template <class Policy>
  gradients<stage::clipped> clip(state_of<Policy>& state) && {
    if (double const limit = norm_limit<Policy>(state); window_.norm > limit) {
      window_.factor *= limit / window_.norm;
      window_.clipped = true;
    }
    if constexpr (looks_at_elements<Policy>) {
      if constexpr (!has_other_order<Policy>) window_.require_dense();
      window_.widen();
      window_.write();
      window_.clipped = apply_clip<Policy>(window_.parameters, window_.all_gradients(), window_.norm, state);
    }
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(window_));
  }
  template <class Policy>
  requires(std::same_as<state_of<Policy>, no_state>) gradients<stage::clipped> clip() && {
    state_of<Policy> none;
    return std::move(*this).template clip<Policy>(none);
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::refuse_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(window_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

template <>
class gradients<stage::unscaled> : public detail::gradients_base<stage::unscaled, window::complete> {
 public:
  /// Reads every gradient once: finite ones come back as the next stage, otherwise where the first is that is not.
  std::variant<gradients<stage::checked>, nonfinite_gradient> check() && {
    window_.coalesce();
    auto const measure = measure_gradients(window_.all_gradients());
    if (measure.first_nonfinite >= 0) {
      return nonfinite_gradient{static_cast<std::size_t>(measure.first_nonfinite), measure.norm};
    }
    window_.norm = measure.norm * window_.factor;
    window_.norms.resize(measure.squares.size());
    for (std::size_t i = 0; i < window_.norms.size(); ++i) window_.norms[i] = measure.norm_of(i) * window_.factor;
    return detail::gradient_access::make<gradients<stage::checked>>(std::move(window_));
  }

  template <class... Arguments>
  gradients<stage::unscaled> unscale(Arguments&&...) {
    detail::refuse_call<rule::P21, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::unscaled>>(std::move(window_));
  }
  template <class... Policy, class... Arguments>
  gradients<stage::clipped> clip(Arguments&&...) {
    detail::refuse_call<rule::G08, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(window_));
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::refuse_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(window_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

template <>
class gradients<stage::scaled, window::complete> : public detail::gradients_base<stage::scaled, window::complete> {
 public:
  /// Divides by the loss scale and by the window's weight.
  gradients<stage::unscaled> unscale() && {
    double const divisor = window_.scale * window_.total_weight;
    if (divisor != 0.0) window_.factor = 1.0 / divisor;
    return detail::gradient_access::make<gradients<stage::unscaled>>(std::move(window_));
  }

  template <class... Policy, class... Arguments>
  gradients<stage::clipped> clip(Arguments&&...) {
    detail::refuse_call<rule::G01, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(window_));
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::refuse_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(window_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

template <>
class gradients<stage::scaled, window::partial> : public detail::gradients_base<stage::scaled, window::partial> {
 public:
  /// Runs the backward pass of one micro-batch's mean loss. Weights are relative to the first one's, so that a window of
  /// equal micro-batches is the plain sum, divided once by their number.
  void add(at::Tensor const& mean_loss, double weight = 1.0) {
    if (window_.first_weight == 0.0) window_.first_weight = weight;
    double const relative = weight / window_.first_weight;
    double const factor = relative * window_.scale;
    at::Tensor loss = factor == 1.0 ? mean_loss : mean_loss * factor;
    if (window_.device_scale.defined()) loss = loss * window_.device_scale;
    if (window_.total_weight > 0.0) window_.widen();
    torch::autograd::backward({loss}, {});
    separate_gradients(window_.parameters);
    window_.total_weight += relative;
  }
  gradients<stage::scaled, window::complete> complete() && {
    return detail::gradient_access::make<gradients<stage::scaled, window::complete>>(std::move(window_));
  }

  template <class... Arguments>
  gradients<stage::unscaled> unscale(Arguments&&...) {
    detail::refuse_call<rule::G02, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::unscaled>>(std::move(window_));
  }
  template <class... Policy, class... Arguments>
  gradients<stage::clipped> clip(Arguments&&...) {
    detail::refuse_call<rule::G02, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(window_));
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::refuse_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(window_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

/// Drops all gradients, so that the next backward pass writes and does not add.
inline void clear_gradients(std::span<at::Tensor const> parameters) {
  for (at::Tensor const& parameter : parameters) parameter.mutable_grad() = at::Tensor();
}

/// A new window over the parameters, whose gradients it clears. `scale` multiplies every loss; `device_scale`, a scalar on the
/// parameters' device, does so too where it is defined.
inline gradients<stage::scaled, window::partial> begin_window(std::span<at::Tensor const> parameters, double scale = 1.0,
                                                              at::Tensor device_scale = {}) {
  clear_gradients(parameters);
  return detail::gradient_access::make<gradients<stage::scaled, window::partial>>(
      {.parameters = parameters, .scale = scale, .device_scale = std::move(device_scale)});
}

}  // namespace keel
