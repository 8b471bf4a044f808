// The gradients of one update, as a value whose type encodes its stage:
//
//     gradients<scaled, partial>   add(loss, weight) ..        one micro-batch after the other
//       .complete()             -> gradients<scaled, complete>
//       .unscale()              -> gradients<unscaled>
//       .check()                -> gradients<checked>, or nonfinite_gradient with the first non-finite gradient
//       .clip<Policy>(state)    -> gradients<clipped>
//       .step(optimizer)        -> gradients<stepped>          final
//
// A call out of order does not compile; the error states the rule. Every call consumes the previous value.
//
// Unscaling and clipping by norm only multiply, so they accumulate one factor and leave the gradients in memory unchanged. An update engine
// (keel::adamw, adam, sgd) applies the factor during its update. Before any other optimizer's step, and before a clip policy that inspects
// elements, the factor is multiplied into the gradients. apply_factor() does so at any time.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
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
/// Accumulated; multiplied by the loss scale and the weights of the micro-batches.
struct scaled {};
/// Divided by the loss scale and the total weight; not checked yet.
struct unscaled {};
/// All gradients are finite.
struct checked {};
/// Clipped, or within the clip limit.
struct clipped {};
/// Applied by the optimizer.
struct stepped {};
}  // namespace stage
namespace accumulation {
/// More micro-batches may follow.
struct partial {};
/// All micro-batches of the update are accumulated.
struct complete {};
}  // namespace accumulation

/// The first non-finite gradient.
struct nonfinite_gradient {
  std::size_t parameter;  ///< index into the parameters
  double norm;            ///< joint L2 norm: NaN or infinite
};

template <class Stage, class Accumulation = accumulation::complete>
class gradients;

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// The data that each stage passes to the next.
struct gradient_values {
  std::span<at::Tensor const> parameters;
  double scale = 1.0;         ///< factor on the loss
  at::Tensor device_scale{};  ///< further factor on the loss, known only on the device; undefined if none
  double first_weight = 0.0;  ///< weight of the first micro-batch: the unit of all weights
  double total_weight = 0.0;  ///< in units of the first
  double factor = 1.0;        ///< pending: not yet multiplied into the gradients in memory
  double norm = 0.0;
  bool clipped = false;
  std::vector<double> norms{};  ///< for each parameter, the L2 norm of its unscaled gradient
  /// If `parameters` are shards: combines the norms of all ranks' shards into those of the full gradients. The argument measures this
  /// rank's shards. Collective.
  std::function<gradient_measure(c10::function_ref<gradient_measure()>)> combine{};

  std::vector<at::Tensor> defined_gradients() const;
  /// Converts gradients of bf16 and fp16 parameters to fp32 for accumulation: with the 8-bit significand of bf16, small gradients would be
  /// rounded away against a large sum.
  void widen();
  /// Converts gradients to the dtype of their parameters, for optimizers that expect it.
  void narrow();
  void apply_factor();
  /// Prepares the gradients for a clip policy that needs more than the joint L2 norm. Throws error (E11) for a sparse gradient if the
  /// policy inspects elements.
  void materialize_for_clip(clip::settings const& settings);
  /// Coalesces sparse gradients, summing duplicate rows.
  void coalesce();
  /// Throws error (E11) if any gradient is sparse: a clip policy cannot inspect each of its elements.
  void require_dense() const;
  /// Returns copies of the gradients multiplied by the factor; does not modify those in memory.
  std::vector<at::Tensor> unscaled_copies() const;
  /// One entry for each parameter, in order; undefined if it has no gradient.
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

// In reverse order, so that each stage can return the next.

/// Gradients that an optimizer has applied.
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

/// Gradients after the clip policy.
template <>
class gradients<stage::clipped> : public detail::gradients_base<stage::clipped, accumulation::complete> {
 public:
  /// The joint L2 norm, before clipping.
  double norm() const { return values_.norm; }
  /// True if the clip policy changed the gradients or their pending factor.
  bool clipped() const { return values_.clipped; }
  /// Multiplies the pending factor into the gradients, rounded to their dtype.
  void apply_factor() { values_.apply_factor(); }
  /// Multiplies the pending factor into the gradients and converts them to the dtypes that this optimizer expects; a no-op for an update
  /// engine. Called by step() if needed.
  void apply_factor_for(torch::optim::Optimizer& optimizer);
  /// Pre-allocates the optimizer state that the step needs, if the optimizer supports that. Called by step() if needed.
  void prepare(torch::optim::Optimizer& optimizer);
  /// Runs the optimizer's step. Throws what the optimizer throws.
  gradients<stage::stepped> step(torch::optim::Optimizer& optimizer) &&;

 private:
  friend detail::gradient_access;
  using gradients_base::gradients_base;
  bool is_prepared_ = false;
  update_engine* engine_ = nullptr;
  detail::first_states states_;  ///< state created for an optimizer that is not an update engine
};

/// Gradients that were checked: all are finite.
template <>
class gradients<stage::checked> : public detail::gradients_base<stage::checked, accumulation::complete> {
 public:
  /// The joint L2 norm, before clipping.
  double norm() const { return values_.norm; }
  /// The gradients divided by the loss scale and the total weight: copies, unless the factor is 1. Undefined for a parameter without a
  /// gradient.
  std::vector<at::Tensor> unscaled() const {
    return values_.factor == 1.0 ? values_.all_gradients() : values_.unscaled_copies();
  }
  /// The factor that unscales the gradients in memory.
  double factor() const { return values_.factor; }
  /// The L2 norm of each parameter's gradient, as returned by norm_of().
  std::vector<double> const& norms() const { return values_.norms; }
  /// The L2 norm of one parameter's gradient, before clipping; 0 without a gradient.
  double norm_of(std::size_t parameter) const { return values_.norms[parameter]; }
  /// Multiplies the pending factor into the gradients, rounded to their dtype.
  void apply_factor() { values_.apply_factor(); }

  /// Clips with a stateful policy, which may update its state. Throws error (E11) for a sparse gradient if the policy inspects elements.
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
  /// As above with a type-erased policy.
  gradients<stage::clipped> clip(clip_mechanism& mechanism, clip::settings const& settings) &&;
  /// As above for a policy without state.
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

/// Gradients without the loss scale, averaged over the update; not checked yet.
template <>
class gradients<stage::unscaled> : public detail::gradients_base<stage::unscaled, accumulation::complete> {
 public:
  /// Reads every gradient once. Returns the next stage if all are finite, otherwise the first non-finite gradient.
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

/// Gradients of all micro-batches of an update, still multiplied by the loss scale.
template <>
class gradients<stage::scaled, accumulation::complete> : public detail::gradients_base<stage::scaled, accumulation::complete> {
 public:
  /// The weight of the first micro-batch. All weights below are relative to it.
  double unit() const { return values_.first_weight; }
  /// The sum of the micro-batches' weights.
  double weight() const { return values_.total_weight; }
  /// Sets the total weight over all ranks, after the all-reduce of the gradients.
  void set_total_weight(double total) { values_.total_weight = total; }
  /// Replaces the parameters with this rank's shards, whose gradients are summed over all ranks. `combine(measure_local)` returns the norms
  /// of the full gradients, computed from every rank's shards; `measure_local` measures this rank's. Collective. Arguments must outlive
  /// the update.
  void use_shards(std::span<at::Tensor const> shards,
                  std::function<gradient_measure(c10::function_ref<gradient_measure()>)> combine) {
    values_.parameters = shards;
    values_.combine = std::move(combine);
  }
  /// Divides by the loss scale and by the total weight.
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

/// Gradients of an open update, to which micro-batches can be added.
template <>
class gradients<stage::scaled, accumulation::partial> : public detail::gradients_base<stage::scaled, accumulation::partial> {
 public:
  /// Runs the backward pass of one micro-batch's mean loss. Weights are relative to the first micro-batch's, so gradients of equally
  /// weighted micro-batches are simply summed, and divided once by their number.
  void add(at::Tensor const& mean_loss, double weight = 1.0);
  /// Returns unit() and weight() as they would be after one more micro-batch of this weight, added by add() or, if `is_term`, by
  /// add_term().
  std::pair<double, double> weights_with(double weight, bool is_term) const;
  /// Same as add(), for a loss that is a term of a sum and is not averaged.
  void add_term(at::Tensor const& loss);
  /// Call before the program's own backward passes, and end_manual_backward() after them.
  void begin_manual_backward();
  /// Ends the micro-batch that begin_manual_backward() began. `is_sum`: its loss is a term of a sum.
  void end_manual_backward(bool is_sum);
  /// Ends the accumulation.
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

/// Resets all gradients to undefined, so that the next backward pass does not accumulate into them.
inline void clear_gradients(std::span<at::Tensor const> parameters) {
  for (at::Tensor const& parameter : parameters) parameter.mutable_grad() = at::Tensor();
}

/// Begins an update: clears the gradients of the parameters. Multiplies every loss by `scale`, and by `device_scale`, a scalar on the
/// parameters' device, if it is defined.
gradients<stage::scaled, accumulation::partial> begin_update(std::span<at::Tensor const> parameters, double scale = 1.0,
                                                             at::Tensor device_scale = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/gradients.ipp>
#endif
