// Sets the gradients of parameters aside for the lifetime of an object, so that a backward pass does not add to them.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// RAII: leaves the parameters without gradients, and restores the tensors, which are not copied, on destruction.
class saved_gradients {
 public:
  explicit saved_gradients(std::vector<at::Tensor> const& parameters) {
    kept_.reserve(parameters.size());
    for (at::Tensor const& one : parameters) kept_.emplace_back(one, std::exchange(one.mutable_grad(), at::Tensor()));
  }
  saved_gradients(saved_gradients const&) = delete;
  saved_gradients& operator=(saved_gradients const&) = delete;
  ~saved_gradients() {
    // In reverse order, because a tied parameter is there twice, the second time without its gradient.
    for (auto at = kept_.rbegin(); at != kept_.rend(); ++at) at->first.mutable_grad() = std::move(at->second);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

}  // namespace keel::detail::inline KEEL_MODE
