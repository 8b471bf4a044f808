// Notices that a tensor was written to, replaced or taken away: by its handle, by how often autograd saw it change, and by a
// few of its elements, because LibTorch's own clip_grad_norm_ and SGD write through `.data()`, which autograd does not count.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <keel/libtorch/mode.hpp>
#include <optional>

namespace keel::inline KEEL_MODE {

class tensor_mark {
 public:
  tensor_mark() = default;
  /// Of an undefined tensor too. `sampled`: its elements are looked at, where they lie in host memory.
  explicit tensor_mark(at::Tensor const& tensor, bool sampled = true) {
    if (!tensor.defined()) return;
    tensor_ = tensor.unsafeGetTensorImpl();
    address_.emplace(tensor.getIntrusivePtr());
    version_ = tensor._version();
    if (sampled) sample_ = sample_of(tensor);
  }
  bool defined() const { return tensor_ != nullptr; }
  friend bool operator==(tensor_mark const& a, tensor_mark const& b) {
    return a.tensor_ == b.tensor_ && a.version_ == b.version_ && a.sample_ == b.sample_;
  }
  /// The same elements, as far as they are looked at, however often they were written.
  bool same_values(tensor_mark const& other) const { return tensor_ == other.tensor_ && sample_ == other.sample_; }
  bool sampled() const { return sample_ != 0; }

 private:
  /// 0 for what cannot be looked at without waiting for a device.
  static std::uint64_t sample_of(at::Tensor const& tensor) {
    std::int64_t const count = tensor.numel();
    bool const readable = tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage();
    if (count == 0 || !readable || !tensor.is_non_overlapping_and_dense()) return 0;
    constexpr std::int64_t most = 16;
    std::int64_t const samples = std::min(count, most);
    auto const size = static_cast<std::size_t>(tensor.element_size());
    auto const* const bytes = static_cast<char const*>(tensor.data_ptr());
    // Fowler, Noll and Vo's hash.
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (std::int64_t i = 0; i < samples; ++i) {
      std::int64_t const at = samples == 1 ? 0 : (count - 1) * i / (samples - 1);
      std::uint64_t element = 0;
      std::memcpy(&element, bytes + static_cast<std::size_t>(at) * size, std::min(size, sizeof element));
      hash = (hash ^ element) * 0x100000001b3ULL;
    }
    return hash;
  }

  /// Keeps the address from another tensor, not the elements.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> address_;
  c10::TensorImpl const* tensor_ = nullptr;
  std::int64_t version_ = 0;
  std::uint64_t sample_ = 0;
};

}  // namespace keel::inline KEEL_MODE
