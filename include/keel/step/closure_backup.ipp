// Definitions for closure_backup.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/nonfinite/nonfinite_values.hpp>
#include <keel/step/closure_backup.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

struct closure_backup::optimizer_copy {
  nlohmann::json values;
  tensor_map tensors;
  // For LBFGS, instead of the two members above.
  using states = std::remove_cvref_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;
  std::optional<states> lbfgs_state;
};

/// Copies LBFGS's state. Clones only the three tensors that LBFGS modifies in place; the copy shares the tensors of the history, which are
/// most of the state.
template <class States>
States clone_lbfgs_state(States const& states) {
  States copies;
  for (auto const& [key, state] : states) {
    auto copy = state->clone();
    auto& of = static_cast<torch::optim::LBFGSParamState&>(*copy);
    for (at::Tensor* const one : {&of.d(), &of.H_diag(), &of.prev_flat_grad()}) {
      if (one->defined()) *one = one->clone();
    }
    copies[key] = std::move(copy);
  }
  return copies;
}

KEEL_BODY closure_backup::closure_backup(torch::optim::Optimizer& optimizer, parameter_list const& parameters)
    : optimizer_(optimizer), parameters_(parameters), state_(std::make_unique<optimizer_copy>()) {
  at::NoGradGuard const no_grad;
  values_.reserve(parameters.tensors.size());
  for (at::Tensor const& one : parameters.tensors) values_.push_back(one.detach().clone());
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    state_->lbfgs_state = clone_lbfgs_state(optimizer.state());
    return;
  }
  save_optimizer(optimizer, parameters, state_->values, state_->tensors);
  for (auto& [name, tensor] : state_->tensors) tensor = tensor.clone();
}

KEEL_BODY closure_backup::~closure_backup() = default;

KEEL_BODY void closure_backup::restore() {
  at::NoGradGuard const no_grad;
  for (std::size_t i = 0; i < values_.size(); ++i) parameters_.tensors[i].detach().copy_(values_[i]);
  if (auto& lbfgs_state = state_->lbfgs_state; lbfgs_state) {
    optimizer_.state() = std::move(*lbfgs_state);
    return;
  }
  load_optimizer(optimizer_, parameters_, state_->values, state_->tensors, "the copy of the optimizer's state");
}

KEEL_BODY std::optional<std::string> first_nonfinite_parameter(parameter_list const& parameters) {
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    if (nonfinite_values_of(parameters.tensors[i].detach()).any()) return parameters.names[i];
  }
  return std::nullopt;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
