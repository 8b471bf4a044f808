// Definitions for gradient_memory.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <keel/gradients/gradient_memory.hpp>
#include <span>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY void separate_gradients(std::span<at::Tensor const> parameters) {
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

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
