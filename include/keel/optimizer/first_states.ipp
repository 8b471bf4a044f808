// Definitions for first_states.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <keel/libtorch/compatibility.hpp>
#include <keel/optimizer/first_states.hpp>
#include <memory>
#include <typeinfo>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline at::Tensor zeros_of(at::Tensor const& parameter) { return at::zeros_like(parameter, at::MemoryFormat::Preserve); }

template <class State, class Options>
std::unique_ptr<torch::optim::OptimizerParamState> first_adam_state(at::Tensor const& parameter,
                                                                    torch::optim::OptimizerOptions const& group) {
  auto state = std::make_unique<State>();
  state->step(0);
  state->exp_avg(zeros_of(parameter));
  state->exp_avg_sq(zeros_of(parameter));
  if (static_cast<Options const&>(group).amsgrad()) state->max_exp_avg_sq(zeros_of(parameter));
  return state;
}

inline std::unique_ptr<torch::optim::OptimizerParamState> first_rmsprop_state(at::Tensor const& parameter,
                                                                              torch::optim::OptimizerOptions const& group) {
  auto const& options = static_cast<torch::optim::RMSpropOptions const&>(group);
  auto state = std::make_unique<torch::optim::RMSpropParamState>();
  state->step(0);
  state->square_avg(zeros_of(parameter));
  if (options.momentum() > 0) state->momentum_buffer(zeros_of(parameter));
  if (options.centered()) state->grad_avg(zeros_of(parameter));
  return state;
}

KEEL_BODY void first_states::make(torch::optim::Optimizer& optimizer) {
  using first_state =
      std::unique_ptr<torch::optim::OptimizerParamState> (*)(at::Tensor const&, torch::optim::OptimizerOptions const&);
  first_state state_of = nullptr;
  // A user-defined class derived from one of these may have another initial state.
  std::type_info const& type = typeid(optimizer);
  if (type == typeid(torch::optim::AdamW))
    state_of = first_adam_state<torch::optim::AdamWParamState, torch::optim::AdamWOptions>;
  if (type == typeid(torch::optim::Adam)) state_of = first_adam_state<torch::optim::AdamParamState, torch::optim::AdamOptions>;
  if (type == typeid(torch::optim::RMSprop)) state_of = first_rmsprop_state;
  bool const is_sgd = type == typeid(torch::optim::SGD);
  if (state_of == nullptr && !is_sgd) return;
  auto const has_momentum = [](torch::optim::OptimizerOptions const& group) {
    return static_cast<torch::optim::SGDOptions const&>(group).momentum() != 0;
  };

  std::size_t with_state = 0;
  for (auto& group : optimizer.param_groups()) {
    if (is_sgd && !has_momentum(group.options())) continue;
    for (at::Tensor const& parameter : group.params()) with_state += parameter.grad().defined() ? 1 : 0;
  }
  // No search from the second update on: a parameter that begins to train later gets its state in the step.
  if (optimizer.state().size() >= with_state) return;

  optimizer_ = &optimizer;
  std::vector<at::Tensor> for_a_moment;
  at::Tensor largest;
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      if (!parameter.grad().defined() || parameter.grad().is_sparse()) continue;
      if (!largest.defined() || parameter.nbytes() > largest.nbytes()) largest = parameter;
      auto const key = libtorch::state_key(parameter);
      if (optimizer.state().find(key) != optimizer.state().end()) continue;
      if (state_of != nullptr) {
        auto state = state_of(parameter, group.options());
        made_.push_back(parameter);
        optimizer.state()[key] = std::move(state);
      } else if (has_momentum(group.options())) {
        for_a_moment.push_back(at::empty_like(parameter));
      }
    }
  }
  // Temporaries of a step that exist at the same time: a root and a denominator; for SGD a gradient with weight decay.
  int const at_once = is_sgd ? 1 : 2;
  for (int i = 0; largest.defined() && i < at_once; ++i) for_a_moment.push_back(at::empty_like(largest));
}

KEEL_BODY void first_states::forget() noexcept {
  if (optimizer_ == nullptr) return;
  for (at::Tensor const& parameter : made_) optimizer_->state().erase(libtorch::state_key(parameter));
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
