// Definitions for exposed_gradients.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <functional>
#include <keel/core/parameters.hpp>
#include <keel/gradients/interference.hpp>
#include <keel/step/exposed_gradients.hpp>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

/// Replaces the gradients of parameters, and restores them on destruction.
class exposed_gradients {
 public:
  exposed_gradients(std::vector<at::Tensor> const& parameters, std::vector<at::Tensor> const& instead)
      : parameters_(parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      own_.push_back(parameters[i].grad());
      if (instead[i].defined()) parameters[i].mutable_grad() = instead[i];
    }
  }
  exposed_gradients(exposed_gradients const&) = delete;
  exposed_gradients& operator=(exposed_gradients const&) = delete;
  ~exposed_gradients() {
    for (std::size_t i = 0; i < own_.size(); ++i) parameters_[i].mutable_grad() = own_[i];
  }

 private:
  std::vector<at::Tensor> const& parameters_;
  std::vector<at::Tensor> own_;
};

KEEL_BODY void show_gradients(parameter_list const& parameters, std::vector<at::Tensor> const& unscaled,
                              std::function<void()> const& show) {
  exposed_gradients const scope(parameters.tensors, unscaled);
  open_update_watch watch(parameters);
  watch.take(true);
  show();
  watch.require_unchanged();
}

KEEL_BODY std::vector<at::Tensor> unscaled_gradients(parameter_list const& parameters, at::Tensor const& unscaling) {
  at::NoGradGuard const no_grad;
  std::vector<at::Tensor> unscaled;
  unscaled.reserve(parameters.tensors.size());
  for (at::Tensor const& parameter : parameters.tensors)
    unscaled.push_back(parameter.grad().defined() ? parameter.grad() * unscaling.to(parameter.grad().scalar_type())
                                                  : at::Tensor());
  return unscaled;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
