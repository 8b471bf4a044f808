// Detects writes to gradients by their version counters, without reading elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <keel/libtorch/mode.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class gradient_versions {
 public:
  /// `parameters` must outlive this.
  explicit gradient_versions(std::span<at::Tensor const> parameters) : parameters_(parameters), seen_(parameters.size()) {}
  void take() {
    for (std::size_t i = 0; i < seen_.size(); ++i) seen_[i] = of(parameters_[i]);
  }
  /// Returns the first parameter whose gradient was created, removed or changed since take(); nullopt if there is none.
  std::optional<std::size_t> first_changed() const {
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      if (of(parameters_[i]) != seen_[i]) return i;
    }
    return std::nullopt;
  }

 private:
  static std::pair<c10::TensorImpl const*, std::int64_t> of(at::Tensor const& parameter) {
    at::Tensor const& gradient = parameter.grad();
    if (!gradient.defined()) return {nullptr, 0};
    return {gradient.unsafeGetTensorImpl(), gradient._version()};
  }

  std::span<at::Tensor const> parameters_;
  std::vector<std::pair<c10::TensorImpl const*, std::int64_t>> seen_;
};

}  // namespace keel::inline KEEL_MODE
