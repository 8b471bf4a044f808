// Puts a model's buffers, such as batch norm's running statistics, back to where an update began. Every buffer is copied at
// every update: LibTorch's batch norm writes its statistics without counting the version up, so a version does not show it. A buffer
// that grew or shrank meanwhile, as a cache does, gets its size back too.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <keel/libtorch/host_value.hpp>
#include <utility>
#include <vector>

namespace keel {

class buffer_snapshot {
 public:
  explicit buffer_snapshot(torch::nn::Module& model) : live_(model.buffers()) {}

  void take() {
    at::NoGradGuard no_grad;
    copies_.resize(live_.size());
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (fits(i)) {
        copies_[i].copy_(live_[i]);
      } else {
        copies_[i] = live_[i].detach().clone();
      }
    }
  }

  /// Restores where `kept`, a bool scalar on the buffers' device, is false; the host only waits for it where a buffer has
  /// another size.
  void restore_unless(at::Tensor const& kept) {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (!fits(i)) {
        if (host_value(kept) == 0.0) restore();
        return;
      }
    }
    for (std::size_t i = 0; i < copies_.size(); ++i)
      live_[i].copy_(at::where(kept.to(live_[i].device()), live_[i], copies_[i]));
  }

  /// Once after each take(); allocates nothing.
  void restore() {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (fits(i)) {
        live_[i].copy_(copies_[i]);
      } else {
        // Into the module's own handle; the next take() makes another copy.
        live_[i].set_data(std::exchange(copies_[i], at::Tensor()));
      }
    }
  }

 private:
  bool fits(std::size_t i) const {
    return copies_[i].defined() && copies_[i].sizes() == live_[i].sizes() &&
           copies_[i].scalar_type() == live_[i].scalar_type() && copies_[i].device() == live_[i].device();
  }

  std::vector<at::Tensor> live_;
  std::vector<at::Tensor> copies_;
};

}  // namespace keel
