// Puts a model's buffers, such as batch norm's running statistics, back to where a window began. Every buffer is copied at
// every window: LibTorch's batch norm writes its statistics without counting the version up, so a version cannot tell.
#pragma once

#include <ATen/ops/where.h>
#include <torch/nn/module.h>

#include <vector>

namespace keel {

class buffer_snapshot {
 public:
  explicit buffer_snapshot(torch::nn::Module& model) : live_(model.buffers()) {}

  void take() {
    at::NoGradGuard no_grad;
    copies_.resize(live_.size());
    for (std::size_t i = 0; i < live_.size(); ++i) {
      if (copies_[i].defined() && copies_[i].sizes() == live_[i].sizes()) {
        copies_[i].copy_(live_[i]);
      } else {
        copies_[i] = live_[i].detach().clone();
      }
    }
  }

  /// Restores where `kept`, a bool scalar on the buffers' device, is false; the host does not wait for it.
  void restore_unless(at::Tensor const& kept) {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < copies_.size(); ++i)
      live_[i].copy_(at::where(kept.to(live_[i].device()), live_[i], copies_[i]));
  }

  void restore() {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < copies_.size(); ++i) live_[i].copy_(copies_[i]);
  }

 private:
  std::vector<at::Tensor> live_;
  std::vector<at::Tensor> copies_;
};

}  // namespace keel
