// Definitions for sgd.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstddef>
#include <keel/optimizer/narrow_kernels.hpp>
#include <keel/optimizer/sgd.hpp>
#include <keel/optimizer/vector_kernels.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY at::Tensor sgd::step(torch::optim::Optimizer::LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  prepare();
  update_with(1.0);
  return loss;
}

KEEL_BODY void sgd::prepare() {
  at::NoGradGuard no_grad;
  detail::each_once is_first;
  for (auto const& group : param_groups()) {
    bool const has_momentum = static_cast<torch::optim::SGDOptions const&>(group.options()).momentum() != 0.0;
    for (at::Tensor const& parameter : group.params()) {
      if (!parameter.grad().defined() || !is_first(parameter)) continue;
      detail::refuse_sparse(parameter.grad());
      masters_.prepare(parameter, place_);
      if (!has_momentum) continue;
      auto& held = state()[libtorch::state_key(parameter)];
      if (held == nullptr) held = std::make_unique<torch::optim::SGDParamState>();
      auto& buffer = static_cast<torch::optim::SGDParamState&>(*held).momentum_buffer();
      if (buffer.defined()) {
        static_cast<torch::optim::SGDParamState&>(*held).momentum_buffer(place_.settled(buffer));
        continue;
      }
      static_cast<torch::optim::SGDParamState&>(*held).momentum_buffer(place_.zeros(masters_.of(parameter)));
      fresh_.insert(parameter.unsafeGetTensorImpl());
    }
  }
}

KEEL_BODY void sgd::forget_prepared() {
  for (auto const& group : param_groups()) {
    for (at::Tensor const& parameter : group.params()) {
      if (fresh_.erase(parameter.unsafeGetTensorImpl()) == 0) continue;
      // A saved zero momentum would count as initialized.
      static_cast<torch::optim::SGDParamState&>(*state()[libtorch::state_key(parameter)]).momentum_buffer(at::Tensor());
    }
  }
}

KEEL_BODY void sgd::update_with(double factor) {
  at::NoGradGuard no_grad;
  jobs_.clear();
  chunks_.clear();
  detail::each_once is_first;
  for (auto const& group : param_groups()) {
    auto const& options = static_cast<torch::optim::SGDOptions const&>(group.options());
    for (at::Tensor const& parameter : group.params()) {
      if (!parameter.grad().defined() || !is_first(parameter)) continue;
      at::Tensor const buffer = momentum_of(parameter, options);
      bool const fresh = fresh_.erase(parameter.unsafeGetTensorImpl()) != 0;
      at::Tensor const& worked = masters_.of(parameter);
      if (detail::are_swept(parameter, worked, {buffer.defined() ? &buffer : &worked})) {
        add_job(parameter, worked, buffer, fresh, options, factor);
      } else {
        update_by_operators(parameter, buffer, fresh, options, factor);
      }
    }
  }
  auto const sweep = [&](std::size_t, detail::chunk const& piece) {
    job const& of = jobs_[piece.tensor];
    of.operands.run(piece, [&](float* parameter, float const* gradient, std::int64_t begin, std::int64_t count) {
      detail::sgd(parameter, gradient, of.buffer == nullptr ? nullptr : of.buffer + begin, of.fresh, count, of.coefficients);
    });
  };
  place_.sweep(chunks_, sweep, [&](detail::chunk const& piece, auto const& visit) {
    visit(jobs_[piece.tensor].momentum);
    visit(*jobs_[piece.tensor].worked);
  });
  jobs_.clear();
}

KEEL_BODY void sgd::update_where(at::Tensor const& should_apply, at::Tensor const& factor) {
  at::NoGradGuard no_grad;
  detail::conditional const when(should_apply, factor);
  begun_.clear();
  detail::each_once is_first;
  for (auto const& group : param_groups()) {
    auto const& options = static_cast<torch::optim::SGDOptions const&>(group.options());
    for (at::Tensor const& parameter : group.params()) {
      if (!parameter.grad().defined() || !is_first(parameter)) continue;
      update_conditionally(parameter, momentum_of(parameter, options), options, when);
    }
  }
}

KEEL_BODY void sgd::undo_update() {
  // The next prepare() recreates them; a checkpoint in between must not contain them, because a zero momentum would count as
  // initialized.
  for (at::Tensor const& parameter : begun_) {
    static_cast<torch::optim::SGDParamState&>(*state()[libtorch::state_key(parameter)]).momentum_buffer(at::Tensor());
  }
  begun_.clear();
}

KEEL_BODY void sgd::move_state_to(std::shared_ptr<state_storage> home) {
  at::NoGradGuard no_grad;
  place_.change_to(std::move(home), [&](auto const& moved) {
    for (auto const& group : param_groups()) {
      for (at::Tensor const& parameter : group.params()) {
        masters_.move(parameter, moved);
        auto const held = state().find(libtorch::state_key(parameter));
        if (held == state().end()) continue;
        auto& momentum = static_cast<torch::optim::SGDParamState&>(*held->second);
        momentum.momentum_buffer(moved(momentum.momentum_buffer(), parameter));
      }
    }
  });
}

KEEL_BODY std::function<void()> sgd::take_aside() {
  begun_.clear();
  return [this, masters = std::exchange(masters_, {}), fresh = std::exchange(fresh_, {}),
          place = std::exchange(place_, {})]() mutable {
    masters_ = std::move(masters);
    place_ = std::move(place);
    fresh_ = std::move(fresh);
  };
}

KEEL_BODY void sgd::add_job(at::Tensor const& parameter, at::Tensor const& worked, at::Tensor const& buffer, bool fresh,
                            torch::optim::SGDOptions const& options, double factor) {
  chunks_.add(jobs_.size(), parameter.numel());
  jobs_.push_back({detail::operands_of(parameter, worked),
                   buffer.defined() ? buffer.data_ptr<float>() : nullptr,
                   fresh,
                   {.factor = static_cast<float>(factor),
                    .weight_decay = static_cast<float>(options.weight_decay()),
                    .momentum = static_cast<float>(options.momentum()),
                    .one_minus_dampening = static_cast<float>(1.0 - options.dampening()),
                    .lr = static_cast<float>(options.lr()),
                    .nesterov = options.nesterov()},
                   buffer,
                   &worked});
  parameter.unsafeGetTensorImpl()->bump_version();
  masters_.updated(parameter);
}

KEEL_BODY void sgd::update_by_operators(at::Tensor const& parameter, at::Tensor buffer, bool fresh,
                                        torch::optim::SGDOptions const& options, double factor) {
  at::Tensor const worked = detail::beside(parameter, masters_.of(parameter));
  at::Tensor const home = buffer;
  buffer = detail::beside(parameter, buffer);
  at::Tensor gradient = parameter.grad().to(worked.scalar_type());
  if (factor != 1.0) gradient = gradient * factor;
  if (options.weight_decay() != 0.0) gradient = gradient.add(worked, options.weight_decay());
  if (buffer.defined()) {
    if (fresh) {
      buffer.copy_(gradient);
    } else {
      buffer.mul_(options.momentum()).add_(gradient, 1.0 - options.dampening());
    }
    gradient = options.nesterov() ? gradient.add(buffer, options.momentum()) : buffer;
  }
  worked.add_(gradient, -options.lr());
  if (detail::is_narrow(parameter)) parameter.detach().copy_(worked);
  masters_.updated(parameter);
  give_back(parameter, worked, home, buffer);
}

KEEL_BODY void sgd::update_conditionally(at::Tensor const& parameter, at::Tensor buffer,
                                         torch::optim::SGDOptions const& options, detail::conditional const& when) {
  at::Tensor const worked = detail::beside(parameter, masters_.of(parameter));
  at::Tensor const home = buffer;
  buffer = detail::beside(parameter, buffer);
  at::Tensor gradient = when.gradient(parameter.grad(), worked.scalar_type());
  if (options.weight_decay() != 0.0) gradient = gradient.add(when.masked(worked), options.weight_decay());
  if (buffer.defined()) {
    if (fresh_.erase(parameter.unsafeGetTensorImpl()) != 0) {
      begun_.push_back(parameter);
      buffer.copy_(gradient);
    } else {
      buffer.mul_(when.choose(options.momentum(), 1.0)).add_(gradient, 1.0 - options.dampening());
    }
    gradient = options.nesterov() ? gradient.add(buffer, options.momentum()) : buffer;
  }
  worked.sub_(when.masked(gradient), options.lr());
  if (detail::is_narrow(parameter)) parameter.detach().copy_(worked);
  masters_.updated(parameter);
  give_back(parameter, worked, home, buffer);
}

KEEL_BODY void sgd::give_back(at::Tensor const& parameter, at::Tensor const& worked, at::Tensor const& home,
                              at::Tensor const& buffer) {
  at::Tensor const& master = masters_.of(parameter);
  detail::return_to(master, worked);
  detail::return_to(home, buffer);
  place_.release(master);
  place_.release(home);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
