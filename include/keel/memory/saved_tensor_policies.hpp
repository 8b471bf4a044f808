// Smaller forms of saved tensors, for a keel::saved_tensor_scope around a forward pass:
//     keel::saved_tensor_scope scope(keel::in_bfloat16(model->parameters()));
//   in_bfloat16   keeps fp32 activations in bf16 until the backward pass: half the memory, three digits of the gradient.
//   on_host       keeps what lies on a device in the host's memory; the copies wait for the device.
// Left out: eight bits, which need a scale a block and move gradients by a percent.
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

/// Tensors that live anyway, such as parameters: another form of them would cost memory and precision for nothing.
class kept_tensors {
 public:
  explicit kept_tensors(std::vector<at::Tensor> const& tensors) {
    for (at::Tensor const& one : tensors) memory_.insert(one.storage().data());
  }
  bool has(at::Tensor const& tensor) const { return tensor.has_storage() && memory_.count(tensor.storage().data()) != 0; }

 private:
  std::unordered_set<void const*> memory_;
};

/// Saves what `pack(tensor)` returns, on the device and in the type that the tensor had when it comes back; an undefined result
/// means the tensor itself.
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

/// fp32 tensors of at least `least` elements in bf16, but for those whose memory is that of `kept`.
inline saved_tensor_scope::maker in_bfloat16(std::vector<at::Tensor> const& kept, std::int64_t least = 1024) {
  return detail::convert([known = std::make_shared<detail::kept_tensors>(kept), least](at::Tensor const& tensor) {
    bool const packs = tensor.scalar_type() == at::kFloat && tensor.numel() >= least && !known->has(tensor);
    return packs ? tensor.to(at::kBFloat16) : at::Tensor();
  });
}

/// Tensors of at least `least` elements that lie on a device, in the host's memory, but for those whose memory is that of
/// `kept`.
inline saved_tensor_scope::maker on_host(std::vector<at::Tensor> const& kept, std::int64_t least = 1024) {
  return detail::convert([known = std::make_shared<detail::kept_tensors>(kept), least](at::Tensor const& tensor) {
    bool const moves = !tensor.device().is_cpu() && tensor.numel() >= least && !known->has(tensor);
    return moves ? tensor.to(at::kCPU) : at::Tensor();
  });
}

}  // namespace keel::inline KEEL_MODE
