// Definitions for parameter_state.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <keel/optimizer/narrow_kernels.hpp>
#include <keel/optimizer/parameter_state.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY at::Tensor state_place::zeros(at::Tensor const& like) const {
  return home_ == nullptr ? at::zeros_like(like) : home_->zeros(like, like.scalar_type());
}

KEEL_BODY operands operands_of(at::Tensor const& parameter, at::Tensor const& worked) {
  return {parameter.scalar_type(), parameter.grad().scalar_type(), worked.data_ptr<float>(), parameter.grad().data_ptr(),
          is_narrow(parameter) ? parameter.data_ptr() : nullptr};
}

KEEL_BODY bool are_plain_memory(at::Tensor const& first, at::ScalarType type,
                                std::initializer_list<at::Tensor const*> tensors) {
  for (at::Tensor const* const one : tensors) {
    if (one->scalar_type() != type || one->device() != first.device() || one->layout() != at::kStrided) return false;
    if (!one->is_non_overlapping_and_dense() || one->sizes() != first.sizes() || one->strides() != first.strides())
      return false;
  }
  return true;
}

KEEL_BODY bool are_swept(at::Tensor const& parameter, at::Tensor const& worked,
                         std::initializer_list<at::Tensor const*> state) {
  at::ScalarType const type = parameter.scalar_type();
  at::ScalarType const gradient_type = parameter.grad().scalar_type() == at::kFloat ? at::kFloat : type;
  return (type == at::kFloat || is_narrow(parameter)) && parameter.device().is_cpu() &&
         are_plain_memory(parameter, type, {&parameter}) && are_plain_memory(parameter, gradient_type, {&parameter.grad()}) &&
         are_plain_memory(parameter, at::kFloat, {&worked}) && are_plain_memory(parameter, at::kFloat, state);
}

KEEL_BODY void lerp_narrow(at::Tensor const& average, at::Tensor const& parameter, float weight) {
  auto const run = [&]<class Narrow>(Narrow const* from) {
    auto* const to = average.data_ptr<float>();
    at::parallel_for(0, average.numel(), chunk_elements, [&](std::int64_t begin, std::int64_t end) {
      float block[narrow_block];
      for (std::int64_t at = begin; at < end; at += narrow_block) {
        std::int64_t const count = std::min(narrow_block, end - at);
        widen(from + at, block, count);
        for (std::int64_t i = 0; i < count; ++i) {
          float const difference = block[i] - to[at + i];
          // The formula of LibTorch's lerp, which is exact at both ends.
          to[at + i] = weight < 0.5F ? to[at + i] + weight * difference : block[i] - difference * (1.0F - weight);
        }
      }
    });
  };
  if (parameter.scalar_type() == at::kHalf) {
    run(parameter.data_ptr<c10::Half>());
  } else {
    run(parameter.data_ptr<c10::BFloat16>());
  }
}

KEEL_BODY void refuse_sparse(at::Tensor const& gradient) {
  if (gradient.layout() == at::kStrided) return;
  throw error("E11",
              "a gradient is sparse, but keel::adamw, adam and sgd require dense gradients. Use an embedding with sparse = "
              "false, or an optimizer for sparse gradients.");
}

KEEL_BODY void master_weights::prepare(at::Tensor const& parameter, state_place const& place) {
  if (!is_narrow(parameter)) return;
  entry& of = masters_[parameter.unsafeGetTensorImpl()];
  bool const changed = of.version != parameter._version() || of.data != parameter.data_ptr();
  if (!of.master.defined()) {
    of.master = parameter.detach().to(at::kFloat);
  } else if (changed) {
    take_over(parameter, of.master);
  }
  of.master = place.settled(of.master);
  remember(parameter, of);
}

KEEL_BODY void master_weights::take_over(at::Tensor const& parameter, at::Tensor const& master) {
  at::Tensor const held = beside(parameter, master);
  at::Tensor const same = held.to(parameter.scalar_type()).eq(parameter.detach());
  return_to(master, at::where(same, held, parameter.detach().to(at::kFloat)));
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
