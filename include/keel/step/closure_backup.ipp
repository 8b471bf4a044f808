// The bodies of closure_backup.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>

#include <keel/checkpoint/optimizer_state.hpp>
#include <keel/nonfinite/nonfinite_values.hpp>
#include <keel/step/closure_backup.hpp>
#include <nlohmann/json.hpp>

#include <keel/core/detail/body_begin.inc>

namespace keel::detail {

struct closure_backup::optimizer_copy {
  nlohmann::json values;
  tensor_map tensors;
};

KEEL_BODY closure_backup::closure_backup(torch::optim::Optimizer& optimizer, parameter_list const& parameters)
    : optimizer_(optimizer), parameters_(parameters), state_(std::make_unique<optimizer_copy>()) {
  at::NoGradGuard const no_grad;
  values_.reserve(parameters.tensors.size());
  for (at::Tensor const& one : parameters.tensors) values_.push_back(one.detach().clone());
  save_optimizer(optimizer, parameters, state_->values, state_->tensors);
  for (auto& [name, tensor] : state_->tensors) tensor = tensor.clone();
}

KEEL_BODY closure_backup::~closure_backup() = default;

KEEL_BODY void closure_backup::put_back() {
  at::NoGradGuard const no_grad;
  for (std::size_t i = 0; i < values_.size(); ++i) parameters_.tensors[i].detach().copy_(values_[i]);
  load_optimizer(optimizer_, parameters_, state_->values, state_->tensors, "the copy of the optimizer's state");
}

KEEL_BODY std::optional<std::string> first_nonfinite_parameter(parameter_list const& parameters) {
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    if (nonfinite_values_of(parameters.tensors[i].detach()).any()) return parameters.names[i];
  }
  return std::nullopt;
}

}  // namespace keel::detail

#include <keel/core/detail/body_end.inc>
