// Definitions for gradients.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/_foreach_mul.h>
#include <torch/csrc/autograd/autograd.h>

#include <keel/step/gradients.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::vector<at::Tensor> gradient_values::defined_gradients() const {
  std::vector<at::Tensor> result;
  result.reserve(parameters.size());
  for (at::Tensor const& parameter : parameters) {
    if (parameter.grad().defined()) result.push_back(parameter.grad());
  }
  return result;
}

KEEL_BODY void gradient_values::widen() {
  at::NoGradGuard no_grad;
  for (at::Tensor const& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && is_narrow(gradient)) gradient = gradient.to(at::kFloat);
  }
}

KEEL_BODY void gradient_values::narrow() {
  at::NoGradGuard no_grad;
  for (at::Tensor const& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && is_narrow(parameter)) gradient = gradient.to(parameter.scalar_type());
  }
}

KEEL_BODY void gradient_values::materialize_for_clip(clip::settings const& settings) {
  if (!has_other_order(settings)) require_dense();
  widen();
  apply_factor();
}

KEEL_BODY void gradient_values::apply_factor() {
  if (factor == 1.0) return;
  at::NoGradGuard no_grad;
  auto defined = defined_gradients();
  for (at::Tensor& gradient : defined) {
    if (gradient.is_sparse()) gradient = gradient._values();
  }
  if (!defined.empty()) at::_foreach_mul_(defined, factor);
  factor = 1.0;
}

KEEL_BODY void gradient_values::coalesce() {
  at::NoGradGuard no_grad;
  for (at::Tensor const& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.is_sparse() && !gradient.is_coalesced()) gradient = gradient.coalesce();
  }
}

KEEL_BODY void gradient_values::require_dense() const {
  for (at::Tensor const& parameter : parameters) {
    if (parameter.grad().defined() && parameter.grad().layout() != at::kStrided) {
      throw error("E11", c10::str("the gradient of a parameter of shape ", parameter.sizes(),
                                  " is sparse, but this clip policy requires dense gradients. Use keel::clip::global_norm, or "
                                  "an embedding with sparse = false."));
    }
  }
}

KEEL_BODY std::vector<at::Tensor> gradient_values::unscaled_copies() const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  result.reserve(parameters.size());
  for (at::Tensor const& parameter : parameters)
    result.push_back(parameter.grad().defined() ? parameter.grad() * factor : at::Tensor());
  return result;
}

KEEL_BODY std::vector<at::Tensor> gradient_values::all_gradients() const {
  std::vector<at::Tensor> result;
  result.reserve(parameters.size());
  for (at::Tensor const& parameter : parameters) result.push_back(parameter.grad());
  return result;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY gradients<stage::scaled, accumulation::partial> begin_update(std::span<at::Tensor const> parameters, double scale,
                                                                       at::Tensor device_scale) {
  clear_gradients(parameters);
  return detail::gradient_access::make<gradients<stage::scaled, accumulation::partial>>(
      {.parameters = parameters, .scale = scale, .device_scale = std::move(device_scale)});
}

KEEL_BODY void gradients<stage::scaled, accumulation::partial>::add(at::Tensor const& mean_loss, double weight) {
  if (values_.first_weight == 0.0) values_.first_weight = weight;
  double const relative = weight / values_.first_weight;
  double const factor = relative * values_.scale;
  at::Tensor loss = factor == 1.0 ? mean_loss : mean_loss * factor;
  if (values_.device_scale.defined()) loss = loss * values_.device_scale;
  if (values_.total_weight > 0.0) values_.widen();
  torch::autograd::backward({loss}, {});
  separate_gradients(values_.parameters);
  values_.total_weight += relative;
}

KEEL_BODY std::pair<double, double> gradients<stage::scaled, accumulation::partial>::weights_with(double weight,
                                                                                                  bool is_term) const {
  if (is_term) return {values_.first_weight, 1.0};
  double const unit = values_.first_weight == 0.0 ? weight : values_.first_weight;
  return {unit, values_.total_weight + (weight == 0.0 ? 0.0 : weight / unit)};
}

KEEL_BODY void gradients<stage::scaled, accumulation::partial>::add_term(at::Tensor const& loss) {
  begin_manual_backward();
  at::Tensor scaled = values_.scale == 1.0 ? loss : loss * values_.scale;
  if (values_.device_scale.defined()) scaled = scaled * values_.device_scale;
  torch::autograd::backward({scaled}, {});
  separate_gradients(values_.parameters);
  values_.total_weight = 1.0;
}

KEEL_BODY void gradients<stage::scaled, accumulation::partial>::begin_manual_backward() {
  if (values_.total_weight > 0.0) values_.widen();
}

KEEL_BODY void gradients<stage::scaled, accumulation::partial>::end_manual_backward(bool is_sum) {
  separate_gradients(values_.parameters);
  values_.total_weight = is_sum ? 1.0 : values_.total_weight + 1.0;
}

KEEL_BODY std::variant<gradients<stage::checked>, nonfinite_gradient> gradients<stage::unscaled>::check() && {
  values_.coalesce();
  auto const measure_own = [this] { return measure_gradients(values_.all_gradients()); };
  gradient_measure const measure = values_.combine ? values_.combine(measure_own) : measure_own();
  if (measure.first_nonfinite >= 0) {
    return nonfinite_gradient{static_cast<std::size_t>(measure.first_nonfinite), measure.norm};
  }
  values_.norm = measure.norm * values_.factor;
  values_.norms.resize(measure.squares.size());
  for (std::size_t i = 0; i < values_.norms.size(); ++i) values_.norms[i] = measure.norm_of(i) * values_.factor;
  return detail::gradient_access::make<gradients<stage::checked>>(std::move(values_));
}

KEEL_BODY void gradients<stage::clipped>::prepare(torch::optim::Optimizer& optimizer) {
  is_prepared_ = true;
  engine_ = dynamic_cast<update_engine*>(&optimizer);
  if (engine_ != nullptr) return engine_->prepare();
  states_.make(optimizer);
}

KEEL_BODY void gradients<stage::clipped>::apply_factor_for(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<update_engine*>(&optimizer) != nullptr) return;
  values_.apply_factor();
  values_.narrow();
}

KEEL_BODY gradients<stage::stepped> gradients<stage::clipped>::step(torch::optim::Optimizer& optimizer) && {
  if (!is_prepared_) prepare(optimizer);
  if (engine_ != nullptr) {
    engine_->update_with(values_.factor);
  } else {
    apply_factor_for(optimizer);
    states_.keep();
    optimizer.step();
  }
  return detail::gradient_access::make<gradients<stage::stepped>>(std::move(values_));
}

KEEL_BODY gradients<stage::clipped> gradients<stage::checked>::clip(clip_mechanism& mechanism,
                                                                    clip::settings const& settings) && {
  double const limit = mechanism.norm_limit(settings);
  if (values_.norm > limit) values_.factor *= limit / values_.norm;
  values_.clipped = values_.norm > limit;
  bool const is_whole = needs_materialized_gradients(settings);
  if (is_whole) values_.materialize_for_clip(settings);
  std::vector<at::Tensor> const all = is_whole ? values_.all_gradients() : std::vector<at::Tensor>();
  bool const changed = mechanism.clip(values_.parameters, all, values_.norm, settings);
  if (is_whole) values_.clipped = changed;
  return detail::gradient_access::make<gradients<stage::clipped>>(std::move(values_));
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
