// Definitions for interference.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <keel/gradients/interference.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void open_update_watch::take(bool sampled) {
  sampled_ = sampled;
  gradients_.resize(parameters_.tensors.size());
  values_.resize(parameters_.tensors.size());
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i] = tensor_mark(parameters_.tensors[i].grad(), sampled);
    values_[i] = tensor_mark(parameters_.tensors[i], sampled);
  }
}

KEEL_BODY void open_update_watch::require_unchanged() const {
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    at::Tensor const& parameter = parameters_.tensors[i];
    if (tensor_mark(parameter.grad(), sampled_) != gradients_[i]) refuse("the gradient of " + parameters_.names[i], what(i));
    tensor_mark const now(parameter, sampled_);
    // Writing identical values, as a clamp after each micro-batch does, is not a change.
    if (now != values_[i] && !(now.sampled() && now.same_values(values_[i])))
      refuse(parameters_.names[i], "was changed, as optimizer.step() and loading do");
  }
}

KEEL_BODY std::string open_update_watch::what(std::size_t i) const {
  at::Tensor const& gradient = parameters_.tensors[i].grad();
  if (!gradient.defined()) return "is gone, as after zero_grad()";
  if (!gradients_[i].defined()) return "came from another backward pass";
  if (gradient.layout() == at::kStrided && gradient.count_nonzero().item<std::int64_t>() == 0)
    return "was set to zero, as zero_grad() does";
  return "was changed, as clip_grad_norm_ and the backward pass of another loss do";
}

KEEL_BODY void open_update_watch::refuse(std::string const& which, std::string const& happened) {
  throw interference_error("E19",
                           which + " " + happened +
                               ", while an update was open. The update is dropped. Do not touch gradients, parameters or "
                               "the optimizer between its micro-batches: the step clears, clips and applies them. Train "
                               "another model that shares parameters before or after the whole update.");
}

KEEL_BODY void repeated_step_watch::take(torch::optim::Optimizer& optimizer, parameter_list const& parameters) {
  parameter_ = at::Tensor();
  for (at::Tensor const& parameter : parameters.tensors) {
    if (!parameter.grad().defined() || parameter.numel() == 0) continue;
    parameter_ = parameter;
    break;
  }
  if (!parameter_.defined()) return;
  gradient_ = tensor_mark(parameter_.grad());
  progress_ = progress_of(optimizer);
  if (!progress_) expect(optimizer);
}

KEEL_BODY void repeated_step_watch::require_none(torch::optim::Optimizer& optimizer) const {
  if (!parameter_.defined() || tensor_mark(parameter_.grad()) != gradient_) return;
  auto const now = progress_of(optimizer);
  bool const repeated = progress_ ? now && *now == *progress_ + 1 : is_as_expected();
  if (!repeated) return;
  throw interference_error(
      "E19",
      "optimizer.step() was called although the step had already applied this update, so its gradients were applied twice. "
      "Remove that call, and start from a checkpoint, or from parameters that you kept.");
}

KEEL_BODY std::optional<std::int64_t> repeated_step_watch::progress_of(torch::optim::Optimizer& optimizer) const {
  auto const found = optimizer.state().find(libtorch::state_key(parameter_));
  if (found == optimizer.state().end() || found->second == nullptr) return std::nullopt;
  auto* const state = found->second.get();
  if (auto* const one = dynamic_cast<torch::optim::AdamWParamState*>(state)) return one->step();
  if (auto* const one = dynamic_cast<torch::optim::AdamParamState*>(state)) return one->step();
  if (auto* const one = dynamic_cast<torch::optim::RMSpropParamState*>(state)) return one->step();
  if (auto* const one = dynamic_cast<torch::optim::AdagradParamState*>(state)) return one->step();
  return std::nullopt;
}

KEEL_BODY void repeated_step_watch::expect(torch::optim::Optimizer& optimizer) {
  expected_.clear();
  auto* const sgd = dynamic_cast<torch::optim::SGD*>(&optimizer);
  if (sgd == nullptr || !is_readable(parameter_) || !is_readable(parameter_.grad())) return;
  for (auto const& group : optimizer.param_groups()) {
    bool const here = std::any_of(group.params().begin(), group.params().end(),
                                  [&](at::Tensor const& one) { return one.is_same(parameter_); });
    if (!here) continue;
    auto const& options = static_cast<torch::optim::SGDOptions const&>(group.options());
    at::Tensor momentum;
    if (auto const found = optimizer.state().find(libtorch::state_key(parameter_)); found != optimizer.state().end())
      momentum = static_cast<torch::optim::SGDParamState&>(*found->second).momentum_buffer();
    if (momentum.defined() && !is_readable(momentum)) return;
    std::int64_t const count = std::min<std::int64_t>(parameter_.numel(), most);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t const at = parameter_.numel() * i / count;
      double const value = element(parameter_, at);
      double step = element(parameter_.grad(), at) + options.weight_decay() * value;
      if (momentum.defined()) {
        double const buffer = options.momentum() * element(momentum, at) + (1.0 - options.dampening()) * step;
        step = options.nesterov() ? step + options.momentum() * buffer : buffer;
      }
      expected_.push_back({at, value, value - options.lr() * step});
    }
  }
}

KEEL_BODY bool repeated_step_watch::is_as_expected() const {
  bool moved = false;
  for (auto const& one : expected_) {
    double const now = element(parameter_, one.at);
    double const length = std::abs(one.after - one.before);
    if (!(std::abs(now - one.after) <= 1e-3 * length + 1e-6 * std::abs(one.before))) return false;
    moved |= now != one.before && std::abs(now - one.before) > 0.5 * length;
  }
  return moved;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
