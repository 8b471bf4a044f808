// keel::adamw and keel::adam: LibTorch's AdamW and Adam in one sweep over memory, with the unscaling and the clipping of a keel
// step folded in. Options, parameter groups, state and checkpoints are LibTorch's; they stand wherever torch::optim::AdamW
// does:
//     keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
// Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization"; Kingma & Ba 2015. fp32 on the CPU runs vectorised and on
// all threads; every other dtype, device and layout by LibTorch's operators. bf16 and fp16 parameters keep an fp32 copy, which
// is what is updated. Sparse gradients are refused (E11).
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <cstdint>
#include <keel/update/chunks.hpp>
#include <keel/update/engine.hpp>
#include <keel/update/parameter_state.hpp>
#include <keel/update/vector_kernels.hpp>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace keel {

namespace detail {

template <class Base>
struct adam_types;
template <>
struct adam_types<torch::optim::AdamW> {
  using options = torch::optim::AdamWOptions;
  using state = torch::optim::AdamWParamState;
  static constexpr bool decoupled = true;
};
template <>
struct adam_types<torch::optim::Adam> {
  using options = torch::optim::AdamOptions;
  using state = torch::optim::AdamParamState;
  static constexpr bool decoupled = false;
};

template <class Base>
class adam_engine : public Base, public update_engine {
  using options_type = typename adam_types<Base>::options;
  using state_type = typename adam_types<Base>::state;
  static constexpr bool decoupled = adam_types<Base>::decoupled;

 public:
  using Base::Base;

  /// As LibTorch's: one update with the gradients as they are.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure != nullptr) {
      at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    prepare();
    update_with(1.0);
    return loss;
  }

  void prepare() override {
    at::NoGradGuard no_grad;
    entries_.clear();
    for (auto const& group : this->param_groups()) {
      bool const amsgrad = static_cast<options_type const&>(group.options()).amsgrad();
      for (at::Tensor const& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        refuse_sparse(parameter.grad());
        masters_.prepare(parameter);
        auto& held = this->state()[libtorch::state_key(parameter)];
        if (held == nullptr) held = std::make_unique<state_type>();
        auto& state = static_cast<state_type&>(*held);
        at::Tensor const worked = masters_.of(parameter);
        if (!state.exp_avg().defined()) state.exp_avg(at::zeros_like(worked));
        if (!state.exp_avg_sq().defined()) state.exp_avg_sq(at::zeros_like(worked));
        if (amsgrad && !state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(at::zeros_like(worked));
        entries_.push_back({&parameter, &state, static_cast<options_type const*>(&group.options())});
      }
    }
  }

  void update_with(double factor) override {
    at::NoGradGuard no_grad;
    jobs_.clear();
    chunks_.clear();
    for (auto const& [parameter, state, options] : entries_) {
      state->step(state->step() + 1);
      exact const c = coefficients(*options, state->step(), factor);
      at::Tensor const& largest = options->amsgrad() ? state->max_exp_avg_sq() : state->exp_avg_sq();
      if (are_plain_memory({parameter, &parameter->grad(), &state->exp_avg(), &state->exp_avg_sq(), &largest})) {
        add_job(*parameter, *state, options->amsgrad(), c);
      } else {
        update_by_operators(*parameter, *state, options->amsgrad(), c);
      }
    }
    entries_.clear();
    chunks_.for_each([&](std::size_t, chunk const& piece) {
      job const& of = jobs_[piece.tensor];
      adam(of.parameter + piece.begin, of.gradient + piece.begin, of.average + piece.begin, of.square + piece.begin,
           of.largest == nullptr ? nullptr : of.largest + piece.begin, piece.count, of.coefficients);
    });
  }

  at::Tensor master_of(at::Tensor const& parameter) const override { return masters_.saved(parameter); }
  void set_master(at::Tensor const& parameter, at::Tensor master) override { masters_.put(parameter, std::move(master)); }

 private:
  /// The coefficients in double, before they are rounded to the kernel's float.
  struct exact {
    double factor, weight_decay, lr, beta1, beta2, eps, step_size, inverse_root_correction2;
  };
  struct job {
    float* parameter;
    float const* gradient;
    float* average;
    float* square;
    float* largest;
    adam_coefficients coefficients;
  };

  static exact coefficients(options_type const& options, std::int64_t step, double factor) {
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

  void add_job(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c) {
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
    jobs_.push_back({parameter.data_ptr<float>(), parameter.grad().data_ptr<float>(),
                     state.exp_avg().template data_ptr<float>(), state.exp_avg_sq().template data_ptr<float>(),
                     amsgrad ? state.max_exp_avg_sq().template data_ptr<float>() : nullptr, rounded});
    // The kernel writes past autograd, which counts the changes of a tensor to notice graphs that are out of date.
    parameter.unsafeGetTensorImpl()->bump_version();
  }

  void update_by_operators(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c) {
    at::Tensor worked = masters_.of(parameter);
    at::Tensor gradient = parameter.grad().to(worked.scalar_type());
    if (c.factor != 1.0) gradient = gradient * c.factor;
    if (!decoupled && c.weight_decay != 0.0) gradient = gradient.add(worked, c.weight_decay);
    if (decoupled && c.weight_decay != 0.0) worked.mul_(1.0 - c.lr * c.weight_decay);
    state.exp_avg().mul_(c.beta1).add_(gradient, 1.0 - c.beta1);
    state.exp_avg_sq().mul_(c.beta2).addcmul_(gradient, gradient, 1.0 - c.beta2);
    if (amsgrad) state.max_exp_avg_sq(at::maximum(state.max_exp_avg_sq(), state.exp_avg_sq()));
    at::Tensor const& second = amsgrad ? state.max_exp_avg_sq() : state.exp_avg_sq();
    worked.addcdiv_(state.exp_avg(), second.sqrt().mul_(c.inverse_root_correction2).add_(c.eps), -c.step_size);
    if (is_narrow(parameter)) parameter.detach().copy_(worked);
  }

  /// A parameter that has a gradient, from prepare to update_with: both point into the optimizer's own groups and state.
  struct entry {
    at::Tensor const* parameter;
    state_type* state;
    options_type const* options;
  };

  master_weights masters_;
  // Between updates empty; kept for their memory.
  std::vector<entry> entries_;
  std::vector<job> jobs_;
  chunk_list chunks_;
};

}  // namespace detail

/// Weight decay on the parameter.
class adamw : public detail::adam_engine<torch::optim::AdamW> {
 public:
  using adam_engine::adam_engine;
};

/// Weight decay added to the gradient.
class adam : public detail::adam_engine<torch::optim::Adam> {
 public:
  using adam_engine::adam_engine;
};

}  // namespace keel
