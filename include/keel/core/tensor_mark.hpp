// Detects that a tensor was modified, replaced or removed: by its handle, by autograd's version counter, and by a sample of its elements,
// because LibTorch's own clip_grad_norm_ and SGD write through `.data()`, which bypasses the version counter.
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
  /// Marks a tensor, which may be undefined. `sampled`: also samples its elements if they are in host memory.
  explicit tensor_mark(at::Tensor const& tensor, bool sampled = true) {
    if (!tensor.defined()) return;
    tensor_ = tensor.unsafeGetTensorImpl();
    address_.emplace(tensor.getIntrusivePtr());
    version_ = tensor._version();
    is_freed_ = tensor.numel() > 0 && tensor.has_storage() && tensor.storage().nbytes() == 0;
    if (sampled) sample_ = sample_of(tensor);
  }
  bool defined() const { return tensor_ != nullptr; }
  friend bool operator==(tensor_mark const& a, tensor_mark const& b) {
    return a.tensor_ == b.tensor_ && a.version_ == b.version_ && (a.sample_ == b.sample_ || a.is_freed_ || b.is_freed_);
  }
  /// True if handle and sampled elements are equal, regardless of the version counter.
  bool same_values(tensor_mark const& other) const { return tensor_ == other.tensor_ && sample_ == other.sample_; }
  bool sampled() const { return sample_ != 0; }

 private:
  /// Returns 0 if the elements cannot be read without synchronizing with a device.
  static std::uint64_t sample_of(at::Tensor const& tensor) {
    std::int64_t const count = tensor.numel();
    // A parameter in shards has no memory outside of its unit.
    bool const readable =
        tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() && tensor.storage().nbytes() != 0;
    if (count == 0 || !readable || !tensor.is_non_overlapping_and_dense()) return 0;
    constexpr std::int64_t most = 16;
    std::int64_t const samples = std::min(count, most);
    auto const size = static_cast<std::size_t>(tensor.element_size());
    auto const* const bytes = static_cast<char const*>(tensor.data_ptr());
    // The FNV-1a hash.
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (std::int64_t i = 0; i < samples; ++i) {
      std::int64_t const at = samples == 1 ? 0 : (count - 1) * i / (samples - 1);
      std::uint64_t element = 0;
      std::memcpy(&element, bytes + static_cast<std::size_t>(at) * size, std::min(size, sizeof element));
      hash = (hash ^ element) * 0x100000001b3ULL;
    }
    return hash;
  }

  /// Prevents another tensor from reusing the address; does not keep the elements alive.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> address_;
  c10::TensorImpl const* tensor_ = nullptr;
  std::int64_t version_ = 0;
  std::uint64_t sample_ = 0;
  bool is_freed_ = false;  ///< a parameter in shards, which has no memory outside of its unit
};

}  // namespace keel::inline KEEL_MODE
