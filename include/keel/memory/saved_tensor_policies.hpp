// Reduces the memory of saved tensors, by a keel::saved_tensor_scope around a forward pass:
//     keel::saved_tensor_scope scope(keel::in_bfloat16(model->parameters()));
//   in_bfloat16   stores fp32 activations in bf16 until the backward pass: half the memory; the gradient keeps three digits.
//   on_host       stores device tensors in host memory; the copies synchronize with the device.
// Not supported: eight bits, which need a scale per block and change gradients by about one percent.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <keel/memory/saved_tensors.hpp>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Tensors that stay in memory anyway, such as parameters. Converting them would cost memory and precision without benefit.
class kept_tensors {
 public:
  explicit kept_tensors(std::vector<at::Tensor> const& tensors) {
    for (at::Tensor const& one : tensors) memory_.insert(one.storage().data());
  }
  bool has(at::Tensor const& tensor) const { return tensor.has_storage() && memory_.count(tensor.storage().data()) != 0; }

 private:
  std::unordered_set<void const*> memory_;
};

/// Hooks that save the result of `pack(tensor)`, or the tensor itself if the result is undefined. Unpacking restores the
/// tensor's device and dtype.
template <class Pack>
class converted final : public torch::autograd::SavedVariableHooks {
 public:
  explicit converted(Pack pack) : pack_(std::move(pack)) {}
  void call_pack_hook(at::Tensor const& tensor) override {
    at::NoGradGuard no_grad;
    options_ = tensor.options();
    saved_ = pack_(tensor);
    if (!saved_.defined()) saved_ = tensor.detach();
  }
  at::Tensor call_unpack_hook() override { return saved_.to(options_); }

 private:
  Pack pack_;
  at::TensorOptions options_;
  at::Tensor saved_;
};

template <class Pack>
saved_tensor_scope::maker convert(Pack const& pack) {
  return [pack]() -> saved_tensor_scope::hooks { return std::make_unique<converted<Pack>>(pack); };
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Stores fp32 tensors of at least `least` elements in bf16, except those that share memory with a tensor in `kept`.
inline saved_tensor_scope::maker in_bfloat16(std::vector<at::Tensor> const& kept, std::int64_t least = 1024) {
  return detail::convert([known = std::make_shared<detail::kept_tensors>(kept), least](at::Tensor const& tensor) {
    bool const packs = tensor.scalar_type() == at::kFloat && tensor.numel() >= least && !known->has(tensor);
    return packs ? tensor.to(at::kBFloat16) : at::Tensor();
  });
}

/// Stores device tensors of at least `least` elements in host memory, except those that share memory with a tensor in `kept`.
inline saved_tensor_scope::maker on_host(std::vector<at::Tensor> const& kept, std::int64_t least = 1024) {
  return detail::convert([known = std::make_shared<detail::kept_tensors>(kept), least](at::Tensor const& tensor) {
    bool const moves = !tensor.device().is_cpu() && tensor.numel() >= least && !known->has(tensor);
    return moves ? tensor.to(at::kCPU) : at::Tensor();
  });
}

}  // namespace keel::inline KEEL_MODE
