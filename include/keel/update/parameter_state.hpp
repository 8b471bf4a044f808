// What the engines share: which tensors the vector kernels may walk through as plain memory, and copies in fp32 of parameters
// that are narrower.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <initializer_list>
#include <keel/error.hpp>
#include <keel/libtorch/compatibility.hpp>
#include <keel/update/narrow_kernels.hpp>
#include <unordered_map>
#include <utility>

namespace keel::detail {

inline bool is_narrow(at::Tensor const& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// All are of that type and on the device of the first, without holes, and lie in memory in the same order as it.
inline bool are_plain_memory(at::Tensor const& first, at::ScalarType type, std::initializer_list<at::Tensor const*> tensors) {
  for (at::Tensor const* const one : tensors) {
    if (one->scalar_type() != type || one->device() != first.device() || one->layout() != at::kStrided) return false;
    if (!one->is_non_overlapping_and_dense() || one->sizes() != first.sizes() || one->strides() != first.strides())
      return false;
  }
  return true;
}

/// The vector kernels can walk through the parameter, its gradient, what is worked on, and the state.
inline bool are_swept(at::Tensor const& parameter, at::Tensor const& worked, std::initializer_list<at::Tensor const*> state) {
  at::ScalarType const type = parameter.scalar_type();
  at::ScalarType const gradient_type = parameter.grad().scalar_type() == at::kFloat ? at::kFloat : type;
  return (type == at::kFloat || is_narrow(parameter)) && parameter.device().is_cpu() &&
         are_plain_memory(parameter, type, {&parameter}) && are_plain_memory(parameter, gradient_type, {&parameter.grad()}) &&
         are_plain_memory(parameter, at::kFloat, {&worked}) && are_plain_memory(parameter, at::kFloat, state);
}

inline operands operands_of(at::Tensor const& parameter, at::Tensor const& worked) {
  return {parameter.scalar_type(), parameter.grad().scalar_type(), worked.data_ptr<float>(), parameter.grad().data_ptr(),
          is_narrow(parameter) ? parameter.data_ptr() : nullptr};
}

inline void refuse_sparse(at::Tensor const& gradient) {
  if (gradient.layout() == at::kStrided) return;
  throw error("E11",
              "a gradient is sparse, and keel::adamw, adam and sgd walk through every element. Use an embedding with sparse = "
              "false, or "
              "an optimizer made for sparse gradients.");
}

/// fp32 copies of bf16 and fp16 parameters: an update of one part in a thousand is lost in eight bits.
class master_weights {
 public:
  /// Makes the copy of a narrow parameter that has none.
  void prepare(at::Tensor const& parameter) {
    if (!is_narrow(parameter)) return;
    at::Tensor& master = masters_[parameter.unsafeGetTensorImpl()];
    if (!master.defined()) master = parameter.detach().to(at::kFloat);
  }
  /// What an update works on: the copy of a narrow parameter, or the parameter itself.
  at::Tensor const& of(at::Tensor const& parameter) const {
    return is_narrow(parameter) ? masters_.at(parameter.unsafeGetTensorImpl()) : parameter;
  }
  /// The copy as a checkpoint holds it; undefined where there is none.
  at::Tensor saved(at::Tensor const& parameter) const {
    auto const found = masters_.find(parameter.unsafeGetTensorImpl());
    return found == masters_.end() ? at::Tensor() : found->second;
  }
  void put(at::Tensor const& parameter, at::Tensor master) { masters_[parameter.unsafeGetTensorImpl()] = std::move(master); }

 private:
  std::unordered_map<c10::TensorImpl const*, at::Tensor> masters_;
};

}  // namespace keel::detail
