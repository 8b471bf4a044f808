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
#include <torch/optim/optimizer.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <keel/clip/clip.hpp>
#include <keel/clip/clip_mechanism.hpp>
#include <keel/core/error.hpp>
#include <keel/gradients/gradient_memory.hpp>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/optimizer/first_states.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <keel/rule/reject_call.hpp>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace keel::inline KEEL_MODE {

namespace stage {
/// Added up, times the loss scale and the micro-batches' weights.
struct scaled {};
/// Divided by both; not looked at yet.
struct unscaled {};
/// Finite.
struct checked {};
/// Clipped, or found small enough.
struct clipped {};
/// The optimizer has used them.
struct stepped {};
}  // namespace stage
namespace accumulation {
/// Micro-batches are still to come.
struct partial {};
/// All micro-batches of the update are in it.
struct complete {};
}  // namespace accumulation

/// Where the first non-finite gradient is.
struct nonfinite_gradient {
  std::size_t parameter;  ///< index into the parameters
  double norm;            ///< joint L2 norm: NaN or infinite
};

template <class Stage, class Accumulation = accumulation::complete>
class gradients;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// What every stage hands to the next.
struct gradient_values {
  std::span<at::Tensor const> parameters;
  double scale = 1.0;         ///< of the loss
  at::Tensor device_scale{};  ///< of the loss too, known on the device alone; undefined: none
  double first_weight = 0.0;  ///< the unit in which the other micro-batches' weights count
  double total_weight = 0.0;  ///< in units of the first
  double factor = 1.0;        ///< that the gradients in memory still lack
  double norm = 0.0;
  bool clipped = false;
  std::vector<double> norms{};  ///< a parameter: the L2 norm of its unscaled gradient

  std::vector<at::Tensor> defined_gradients() const;
  /// Gradients of bf16 and fp16 parameters from here on add up in fp32: in eight bits, small ones would be lost beside a large
  /// sum.
  void widen();
  /// For an optimizer that expects gradients of the parameters' own dtype.
  void narrow();
  void write();
  /// For a clip policy that looks at more than the joint L2 norm. Throws error (E11) for a sparse gradient, where it looks at elements.
  void materialize_for_clip(clip::settings const& settings);
  /// Adds up what a sparse gradient holds of one row more than once.
  void coalesce();
  /// Throws error (E11) for a sparse gradient, of which a clip policy that looks at elements cannot take a look at each.
  void require_dense() const;
  /// The gradients as they would be with the factor in them; those in memory stay.
  std::vector<at::Tensor> unscaled_copies() const;
  /// One entry a parameter, undefined where it has no gradient, so that indices stay those of the parameters.
  std::vector<at::Tensor> all_gradients() const;
};

struct gradient_access;

template <class Stage, class Accumulation>
class gradients_base {
 public:
  gradients_base(gradients_base&&) noexcept = default;
  gradients_base& operator=(gradients_base&&) noexcept = default;

 protected:
  friend gradient_access;
  explicit gradients_base(gradient_values values) : values_(std::move(values)) {}
  gradient_values values_;
};

struct gradient_access {
  template <class Gradients>
  static gradient_values open(Gradients taken) {
    return std::move(taken.values_);
  }
  template <class Gradients>
  static Gradients make(gradient_values values) {
    return Gradients(std::move(values));
  }
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

// The last stage comes first, so that each can return the next.

/// Gradients that an optimizer stepped with.
template <>
class gradients<stage::stepped> : public detail::gradients_base<stage::stepped, accumulation::complete> {
 public:
  /// The joint L2 norm, before clipping.
  double norm() const { return values_.norm; }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::reject_call<rule::O03, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(values_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

/// Gradients that a clip policy has looked at.
template <>
class gradients<stage::clipped> : public detail::gradients_base<stage::clipped, accumulation::complete> {
 public:
  /// The joint L2 norm, before clipping.
  double norm() const { return values_.norm; }
  /// The clip policy changed the gradients, or the factor that is still to come into them.
  bool clipped() const { return values_.clipped; }
  /// Writes the factor that is still to come into the gradients, rounded to their dtype.
  void write() { values_.write(); }
  /// Writes them as this optimizer's step reads them: for an update engine, as they are. step does it where it was not done.
  void write_for(torch::optim::Optimizer& optimizer);
  /// What the step allocates, as far as its optimizer allows it, while nothing has changed yet; step does it where it was not done.
  void prepare(torch::optim::Optimizer& optimizer);
  /// The optimizer's step. Throws what the optimizer throws.
  gradients<stage::stepped> step(torch::optim::Optimizer& optimizer) &&;

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
  bool is_prepared_ = false;
  update_engine* engine_ = nullptr;
  detail::first_states states_;  ///< of another optimizer
};

/// Gradients that are finite.
template <>
class gradients<stage::checked> : public detail::gradients_base<stage::checked, accumulation::complete> {
 public:
  /// The joint L2 norm, before clipping.
  double norm() const { return values_.norm; }
  /// The gradients divided by the loss scale and the weight, in separate tensors unless that is what lies in memory; an
  /// undefined one for a parameter without a gradient.
  std::vector<at::Tensor> unscaled() const {
    return values_.factor == 1.0 ? values_.all_gradients() : values_.unscaled_copies();
  }
  /// What unscales the gradients that are in the parameters.
  double factor() const { return values_.factor; }
  /// The L2 norm of each parameter's gradient, as norm_of().
  std::vector<double> const& norms() const { return values_.norms; }
  /// The L2 norm of one parameter's gradient, before clipping; 0 without a gradient.
  double norm_of(std::size_t parameter) const { return values_.norms[parameter]; }
  /// Writes the factor that is still to come into the gradients, rounded to their dtype.
  void write() { values_.write(); }

  /// Clips as a policy with state says, and may change that state. Throws error (E11) for a sparse gradient where the policy
  /// looks at elements.
  template <class Policy>
  gradients<stage::clipped> clip(state_of<Policy>& state,
                                 clip::settings const& settings = detail::closed_settings<Policy>()) && {
    if (double const limit = norm_limit<Policy>(state, settings); values_.norm > limit) {
      values_.factor *= limit / values_.norm;
      values_.clipped = true;
    }
    if (needs_materialized_gradients(settings)) {
      values_.materialize_for_clip(settings);
      values_.clipped = apply_clip<Policy>(values_.parameters, values_.all_gradients(), values_.norm, state, settings);
    }
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(values_));
  }
  /// The same by a policy of any recipe.
  gradients<stage::clipped> clip(clip_mechanism& mechanism, clip::settings const& settings) &&;
  /// The same for a policy without state.
  template <class Policy>
    requires(std::same_as<state_of<Policy>, no_state>)
  gradients<stage::clipped> clip() && {
    state_of<Policy> none;
    return std::move(*this).template clip<Policy>(none);
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::reject_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(values_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

/// Gradients without the loss scale, the mean of an update; nothing has looked at their values.
template <>
class gradients<stage::unscaled> : public detail::gradients_base<stage::unscaled, accumulation::complete> {
 public:
  /// Reads every gradient once: finite ones come back as the next stage, otherwise where the first is that is not.
  std::variant<gradients<stage::checked>, nonfinite_gradient> check() &&;

  template <class... Arguments>
  gradients<stage::unscaled> unscale(Arguments&&...) {
    detail::reject_call<rule::P21, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::unscaled>>(std::move(values_));
  }
  template <class... Policy, class... Arguments>
  gradients<stage::clipped> clip(Arguments&&...) {
    detail::reject_call<rule::G08, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(values_));
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::reject_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(values_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

/// The gradients of all micro-batches of an update, still times the loss scale.
template <>
class gradients<stage::scaled, accumulation::complete> : public detail::gradients_base<stage::scaled, accumulation::complete> {
 public:
  /// What the micro-batches' weights count in, and their sum in it.
  double unit() const { return values_.first_weight; }
  /// The sum of the micro-batches' weights, in this unit.
  double weight() const { return values_.total_weight; }
  /// Other ranks' gradients were added, and all of them weigh so much in this unit.
  void set_total_weight(double total) { values_.total_weight = total; }
  /// Divides by the loss scale and by the update's weight.
  gradients<stage::unscaled> unscale() && {
    double const divisor = values_.scale * values_.total_weight;
    if (divisor != 0.0) values_.factor = 1.0 / divisor;
    return detail::gradient_access::make<gradients<stage::unscaled>>(std::move(values_));
  }

  template <class... Policy, class... Arguments>
  gradients<stage::clipped> clip(Arguments&&...) {
    detail::reject_call<rule::G01, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(values_));
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::reject_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(values_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

/// An update that takes micro-batches.
template <>
class gradients<stage::scaled, accumulation::partial> : public detail::gradients_base<stage::scaled, accumulation::partial> {
 public:
  /// Runs the backward pass of one micro-batch's mean loss. Weights are relative to the first one's, so that an update of
  /// equal micro-batches is the plain sum, divided once by their number.
  void add(at::Tensor const& mean_loss, double weight = 1.0);
  /// What unit() and weight() come to with one more micro-batch of this weight, as a mean or as a term.
  std::pair<double, double> weights_with(double weight, bool is_term) const;
  /// The same with a loss that is a term of a sum, which nothing divides.
  void add_term(at::Tensor const& loss);
  /// Around backward passes of the program's own, which end with end_manual_backward(): of a mean, or of a sum.
  void begin_term();
  /// Ends what begin_term() began.
  void end_manual_backward(bool is_sum);
  /// No micro-batch comes after this.
  gradients<stage::scaled, accumulation::complete> complete() && {
    return detail::gradient_access::make<gradients<stage::scaled, accumulation::complete>>(std::move(values_));
  }

  template <class... Arguments>
  gradients<stage::unscaled> unscale(Arguments&&...) {
    detail::reject_call<rule::G02, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::unscaled>>(std::move(values_));
  }
  template <class... Policy, class... Arguments>
  gradients<stage::clipped> clip(Arguments&&...) {
    detail::reject_call<rule::G02, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::clipped>>(std::move(values_));
  }

  template <class... Arguments>
  gradients<stage::stepped> step(Arguments&&...) {
    detail::reject_call<rule::G12, gradients, Arguments...>();
    return detail::gradient_access::make<gradients<stage::stepped>>(std::move(values_));
  }

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
};

/// Drops all gradients, so that the next backward pass writes and does not add.
inline void clear_gradients(std::span<at::Tensor const> parameters) {
  for (at::Tensor const& parameter : parameters) parameter.mutable_grad() = at::Tensor();
}

/// A new update over the parameters, whose gradients it clears. `scale` multiplies every loss; `device_scale`, a scalar on the
/// parameters' device, does so too where it is defined.
gradients<stage::scaled, accumulation::partial> begin_update(std::span<at::Tensor const> parameters, double scale = 1.0,
                                                             at::Tensor device_scale = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/gradients.ipp>
#endif
