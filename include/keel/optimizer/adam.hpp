// keel::adamw and keel::adam: LibTorch's AdamW and Adam in one sweep over memory, with the unscaling and the clipping of a keel
// step folded in. Options, parameter groups, state and checkpoints are LibTorch's; they stand wherever torch::optim::AdamW
// does:
//     keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
// Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization"; Kingma & Ba 2015. fp32, bf16 and fp16 on the CPU run
// vectorised and on all threads; every other dtype, device and layout by LibTorch's operators. bf16 and fp16 parameters keep an
// fp32 copy, which is what is updated; what the program writes into such a parameter enters its copy with the next update.
// Sparse gradients are refused (E11). torch::save of such an optimizer writes LibTorch's state and not the fp32 copies: after
// torch::load they are made of the rounded parameters. keel's checkpoints hold them.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <keel/optimizer/chunks.hpp>
#include <keel/optimizer/conditional.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <keel/optimizer/vector_kernels.hpp>
#include <map>
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

  // Moments of zero are those of an optimizer that has not begun.
  void forget_prepared() override { entries_.clear(); }

  void update_with(double factor) override {
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
    place_.sweep(chunks_, sweep, [this](chunk const& piece) { release(piece); });
    jobs_.clear();
  }

  void update_where(at::Tensor const& happens, at::Tensor const& factor) override {
    at::NoGradGuard no_grad;
    conditional const when(happens, factor);
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

  void take_back() override {
    for (state_type* const state : counted_) state->step(state->step() - 1);
    counted_.clear();
  }

  void move_state_to(std::shared_ptr<state_storage> home) override {
    at::NoGradGuard no_grad;
    // Tensor by tensor, so that where one of them does not fit, all are still found where they are.
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

  std::function<void()> take_aside() override {
    counted_.clear();
    return [this, masters = std::exchange(masters_, {}), place = std::exchange(place_, {})]() mutable {
      masters_ = std::move(masters);
      place_ = std::move(place);
    };
  }

  at::Tensor master_of(at::Tensor const& parameter) const override { return masters_.saved(parameter); }
  void set_master(at::Tensor const& parameter, at::Tensor master) override { masters_.put(parameter, std::move(master)); }

 private:
  /// A parameter that has a gradient, from prepare to update_with: both point into the optimizer's own groups and state.
  struct entry {
    at::Tensor const* parameter;
    state_type* state;
    options_type const* options;
  };
  /// The coefficients in double, before they are rounded to the kernel's float.
  struct exact {
    double factor, weight_decay, lr, beta1, beta2, eps, step_size, inverse_root_correction2;
  };
  struct job {
    detail::operands operands;
    float* average;
    float* square;
    float* largest;
    adam_coefficients coefficients;
    at::Tensor const* worked;
    state_type const* state;
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

  void add_job(at::Tensor const& parameter, at::Tensor const& worked, state_type& state, bool amsgrad, exact const& c) {
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
    // The kernel writes past autograd, which counts the changes of a tensor to notice graphs that are out of date.
    parameter.unsafeGetTensorImpl()->bump_version();
    masters_.updated(parameter);
  }

  /// What a piece of a sweep touched of state that lives elsewhere.
  void release(chunk const& piece) {
    job const& of = jobs_[piece.tensor];
    for (at::Tensor const* const one : {of.worked, &of.state->exp_avg(), &of.state->exp_avg_sq(), &of.state->max_exp_avg_sq()})
      place_.release(*one, piece.begin, piece.begin + piece.count);
  }

  /// A parameter's state where operators can work on it, and back to where it lives at the end.
  struct borrowed {
    borrowed(at::Tensor const& parameter, at::Tensor const& master, state_type& of, state_place const& place)
        : master_(master),
          state_(of),
          place_(place),
          worked(beside(parameter, master)),
          average(beside(parameter, of.exp_avg())),
          square(beside(parameter, of.exp_avg_sq())),
          largest(beside(parameter, of.max_exp_avg_sq())) {}
    void give_back() {
      return_to(master_, worked);
      return_to(state_.exp_avg(), average);
      return_to(state_.exp_avg_sq(), square);
      return_to(state_.max_exp_avg_sq(), largest);
      place_.release(master_);
      place_.release(state_.exp_avg());
      place_.release(state_.exp_avg_sq());
      place_.release(state_.max_exp_avg_sq());
    }

   private:
    at::Tensor const& master_;
    state_type& state_;
    state_place const& place_;

   public:
    at::Tensor worked, average, square, largest;
  };

  void update_by_operators(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c) {
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

  void update_conditionally(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c,
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

  /// The kernel takes the scale of the gradients in fp32, which would round the update of wider parameters, and reads
  /// everything in the order in which it lies in memory.
  static bool suits_fused_kernel(at::Tensor const& parameter, state_type const& state, bool amsgrad) {
    at::Tensor const& largest = amsgrad ? state.max_exp_avg_sq() : state.exp_avg_sq();
    return are_plain_memory(parameter, at::kFloat,
                            {&parameter, &parameter.grad(), &state.exp_avg(), &state.exp_avg_sq(), &largest});
  }

  /// LibTorch's own kernel divides by the scale, in the gradients themselves too, and leaves everything alone where found_inf
  /// is one. All entries are at the same step.
  static void update_fused(std::vector<entry> const& entries, options_type const& options, std::int64_t step,
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

  master_weights masters_;
  state_place place_;
  // Between updates empty; kept for their memory.
  std::vector<entry> entries_;
  std::vector<state_type*> counted_;  ///< what the last update_where counted
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
