// Autograd lets parameters that were added as views share the memory of their gradients, which LibTorch then adds to and scales
// once for each of them: two accumulated passes give 1.5 times the gradient (pytorch/pytorch issue 34082).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

namespace keel {

/// Gives every parameter its own gradient. Gradients that lie side by side in one storage, as cuDNN's of an RNN do, stay
/// there.
inline void separate_gradients(std::span<at::Tensor const> parameters) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor*> shared;
  for (at::Tensor const& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.has_storage() && gradient.storage().use_count() > 1) shared.push_back(&gradient);
  }
  auto const begin_of = [](at::Tensor const* one) { return static_cast<char const*>(one->data_ptr()); };
  std::sort(shared.begin(), shared.end(),
            [&](auto const* a, auto const* b) { return std::less<>{}(begin_of(a), begin_of(b)); });
  char const* end = nullptr;
  for (at::Tensor* const one : shared) {
    if (std::less<>{}(begin_of(one), end)) {
      *one = one->clone();
    } else {
      end = begin_of(one) + one->nbytes();
    }
  }
}

}  // namespace keel
