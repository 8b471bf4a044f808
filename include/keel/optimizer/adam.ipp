// Definitions for adam.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <keel/libtorch/compatibility.hpp>
#include <keel/optimizer/adam.hpp>
#include <keel/optimizer/narrow_kernels.hpp>
#include <keel/optimizer/vector_kernels.hpp>
#include <map>
#include <tuple>

namespace keel::detail::inline KEEL_MODE {

template <class Base>
at::Tensor adam_engine<Base>::step(torch::optim::Optimizer::LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  prepare();
  update_with(1.0);
  return loss;
}

template <class Base>
void adam_engine<Base>::prepare() {
  at::NoGradGuard no_grad;
  entries_.clear();
  each_once is_first;
  for (auto const& group : this->param_groups()) {
    bool const amsgrad = static_cast<options_type const&>(group.options()).amsgrad();
    for (at::Tensor const& parameter : group.params()) {
      if (!parameter.grad().defined() || !is_first(parameter)) continue;
      refuse_sparse(parameter.grad());
      masters_.prepare(parameter, place_);
      auto& held = this->state()[libtorch::state_key(parameter)];
      if (held == nullptr) held = std::make_unique<state_type>();
      auto& state = static_cast<state_type&>(*held);
      at::Tensor const& worked = masters_.of(parameter);
      auto const there = [&](at::Tensor const& moment) {
        return moment.defined() ? place_.settled(moment) : place_.zeros(worked);
      };
      state.exp_avg(there(state.exp_avg()));
      state.exp_avg_sq(there(state.exp_avg_sq()));
      if (amsgrad) state.max_exp_avg_sq(there(state.max_exp_avg_sq()));
      entries_.push_back({&parameter, &state, static_cast<options_type const*>(&group.options())});
    }
  }
}

template <class Base>
void adam_engine<Base>::update_with(double factor) {
  at::NoGradGuard no_grad;
  jobs_.clear();
  chunks_.clear();
  for (auto const& [parameter, state, options] : entries_) {
    state->step(state->step() + 1);
    exact const c = coefficients(*options, state->step(), factor);
    at::Tensor const& largest = options->amsgrad() ? state->max_exp_avg_sq() : state->exp_avg_sq();
    at::Tensor const& worked = masters_.of(*parameter);
    if (are_swept(*parameter, worked, {&state->exp_avg(), &state->exp_avg_sq(), &largest})) {
      add_job(*parameter, worked, *state, options->amsgrad(), c);
    } else {
      update_by_operators(*parameter, *state, options->amsgrad(), c);
    }
  }
  entries_.clear();
  auto const sweep = [&](std::size_t, chunk const& piece) {
    job const& of = jobs_[piece.tensor];
    of.operands.run(piece, [&](float* parameter, float const* gradient, std::int64_t begin, std::int64_t count) {
      adam(parameter, gradient, of.average + begin, of.square + begin, of.largest == nullptr ? nullptr : of.largest + begin,
           count, of.coefficients);
    });
  };
  place_.sweep(chunks_, sweep, [this](chunk const& piece, auto const& visit) {
    job const& of = jobs_[piece.tensor];
    for (at::Tensor const* const one : {of.worked, &of.state->exp_avg(), &of.state->exp_avg_sq(), &of.state->max_exp_avg_sq()})
      visit(*one);
  });
  jobs_.clear();
}

template <class Base>
void adam_engine<Base>::update_where(at::Tensor const& should_apply, at::Tensor const& factor) {
  at::NoGradGuard no_grad;
  conditional const when(should_apply, factor);
  counted_.clear();
  std::map<std::pair<options_type const*, std::int64_t>, std::vector<entry>> fused;
  for (entry const& one : entries_) {
    auto const& [parameter, state, options] = one;
    state->step(state->step() + 1);
    counted_.push_back(state);
    if (decoupled && libtorch::has_fused_adamw && suits_fused_kernel(*parameter, *state, options->amsgrad())) {
      fused[{options, state->step()}].push_back(one);
    } else {
      update_conditionally(*parameter, *state, options->amsgrad(), coefficients(*options, state->step(), 1.0), when);
    }
  }
  for (auto const& [key, entries] : fused) update_fused(entries, *key.first, key.second, when);
  entries_.clear();
}

template <class Base>
void adam_engine<Base>::undo_update() {
  for (state_type* const state : counted_) state->step(state->step() - 1);
  counted_.clear();
}

template <class Base>
void adam_engine<Base>::move_state_to(std::shared_ptr<state_storage> home) {
  at::NoGradGuard no_grad;
  // Tensor by tensor, so that if one does not fit, the state of all is still valid.
  place_.change_to(std::move(home), [&](auto const& moved) {
    for (auto const& group : this->param_groups()) {
      for (at::Tensor const& parameter : group.params()) {
        masters_.move(parameter, moved);
        auto const held = this->state().find(libtorch::state_key(parameter));
        if (held == this->state().end()) continue;
        auto& state = static_cast<state_type&>(*held->second);
        state.exp_avg(moved(state.exp_avg(), parameter));
        state.exp_avg_sq(moved(state.exp_avg_sq(), parameter));
        state.max_exp_avg_sq(moved(state.max_exp_avg_sq(), parameter));
      }
    }
  });
}

template <class Base>
std::function<void()> adam_engine<Base>::take_aside() {
  counted_.clear();
  return [this, masters = std::exchange(masters_, {}), place = std::exchange(place_, {})]() mutable {
    masters_ = std::move(masters);
    place_ = std::move(place);
  };
}

template <class Base>
typename adam_engine<Base>::exact adam_engine<Base>::coefficients(options_type const& options, std::int64_t step,
                                                                  double factor) {
  auto const [beta1, beta2] = options.betas();
  double const correction1 = 1.0 - std::pow(beta1, static_cast<double>(step));
  double const correction2 = 1.0 - std::pow(beta2, static_cast<double>(step));
  return {factor,
          options.weight_decay(),
          options.lr(),
          beta1,
          beta2,
          options.eps(),
          options.lr() / correction1,
          1.0 / std::sqrt(correction2)};
}

template <class Base>
void adam_engine<Base>::add_job(at::Tensor const& parameter, at::Tensor const& worked, state_type& state, bool amsgrad,
                                exact const& c) {
  adam_coefficients const rounded{.factor = static_cast<float>(c.factor),
                                  .coupled_decay = decoupled ? 0.0F : static_cast<float>(c.weight_decay),
                                  .keep = decoupled ? static_cast<float>(1.0 - c.lr * c.weight_decay) : 1.0F,
                                  .beta1 = static_cast<float>(c.beta1),
                                  .one_minus_beta1 = static_cast<float>(1.0 - c.beta1),
                                  .beta2 = static_cast<float>(c.beta2),
                                  .one_minus_beta2 = static_cast<float>(1.0 - c.beta2),
                                  .inverse_root_correction2 = static_cast<float>(c.inverse_root_correction2),
                                  .eps = static_cast<float>(c.eps),
                                  .step_size = static_cast<float>(c.step_size)};
  chunks_.add(jobs_.size(), parameter.numel());
  jobs_.push_back({operands_of(parameter, worked), state.exp_avg().template data_ptr<float>(),
                   state.exp_avg_sq().template data_ptr<float>(),
                   amsgrad ? state.max_exp_avg_sq().template data_ptr<float>() : nullptr, rounded, &worked, &state});
  // The kernel bypasses autograd, which detects modified graphs by the version counter.
  parameter.unsafeGetTensorImpl()->bump_version();
  masters_.updated(parameter);
}

template <class Base>
void adam_engine<Base>::update_by_operators(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c) {
  borrowed of(parameter, masters_.of(parameter), state, place_);
  at::Tensor const& worked = of.worked;
  at::Tensor gradient = parameter.grad().to(worked.scalar_type());
  if (c.factor != 1.0) gradient = gradient * c.factor;
  if (!decoupled && c.weight_decay != 0.0) gradient = gradient.add(worked, c.weight_decay);
  if (decoupled && c.weight_decay != 0.0) worked.mul_(1.0 - c.lr * c.weight_decay);
  of.average.mul_(c.beta1).add_(gradient, 1.0 - c.beta1);
  of.square.mul_(c.beta2).addcmul_(gradient, gradient, 1.0 - c.beta2);
  if (amsgrad) of.largest.copy_(at::maximum(of.largest, of.square));
  at::Tensor const& second = amsgrad ? of.largest : of.square;
  worked.addcdiv_(of.average, second.sqrt().mul_(c.inverse_root_correction2).add_(c.eps), -c.step_size);
  if (is_narrow(parameter)) parameter.detach().copy_(worked);
  masters_.updated(parameter);
  of.give_back();
}

template <class Base>
void adam_engine<Base>::update_conditionally(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c,
                                             conditional const& when) {
  borrowed of(parameter, masters_.of(parameter), state, place_);
  at::Tensor const& worked = of.worked;
  at::Tensor gradient = when.gradient(parameter.grad(), worked.scalar_type());
  if (!decoupled && c.weight_decay != 0.0) gradient = gradient.add(when.masked(worked), c.weight_decay);
  if (decoupled && c.weight_decay != 0.0) worked.mul_(when.choose(1.0 - c.lr * c.weight_decay, 1.0));
  of.average.mul_(when.choose(c.beta1, 1.0)).add_(gradient, 1.0 - c.beta1);
  of.square.mul_(when.choose(c.beta2, 1.0)).addcmul_(gradient, gradient, 1.0 - c.beta2);
  if (amsgrad) of.largest.copy_(at::maximum(of.largest, of.square));
  at::Tensor const& second = amsgrad ? of.largest : of.square;
  at::Tensor const step = of.average.div(second.sqrt().mul_(c.inverse_root_correction2).add_(c.eps));
  worked.sub_(when.masked(step), c.step_size);
  if (is_narrow(parameter)) parameter.detach().copy_(worked);
  masters_.updated(parameter);
  of.give_back();
}

template <class Base>
bool adam_engine<Base>::suits_fused_kernel(at::Tensor const& parameter, state_type const& state, bool amsgrad) {
  at::Tensor const& largest = amsgrad ? state.max_exp_avg_sq() : state.exp_avg_sq();
  return are_plain_memory(parameter, at::kFloat,
                          {&parameter, &parameter.grad(), &state.exp_avg(), &state.exp_avg_sq(), &largest});
}

template <class Base>
void adam_engine<Base>::update_fused(std::vector<entry> const& entries, options_type const& options, std::int64_t step,
                                     conditional const& when) {
  libtorch::fused_adamw_list list;
  at::Tensor const steps = at::full_like(when.factor(), static_cast<double>(step), at::kFloat);
  for (auto const& [parameter, state, unused] : entries) {
    list.parameters.push_back(parameter->detach());
    list.gradients.push_back(parameter->grad());
    list.averages.push_back(state->exp_avg());
    list.squares.push_back(state->exp_avg_sq());
    if (options.amsgrad()) list.largest.push_back(state->max_exp_avg_sq());
    list.steps.push_back(steps);
  }
  auto const [beta1, beta2] = options.betas();
  libtorch::fused_adamw(list, options.lr(), beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(),
                        when.factor().reciprocal().to(at::kFloat), when.choose(0.0, 1.0).to(at::kFloat));
}

}  // namespace keel::detail::inline KEEL_MODE
