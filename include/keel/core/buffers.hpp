// Restores a model's buffers, such as batch norm's running statistics, to the beginning of an update. Copies every buffer at every update,
// because LibTorch's batch norm writes its statistics without incrementing the version counter. A buffer that was resized meanwhile, such
// as a cache, is restored to its old size, too.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <keel/libtorch/host_value.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class buffer_snapshot {
 public:
  explicit buffer_snapshot(torch::nn::Module& model) { add(model); }
  /// Also covers the buffers of another model that the forward pass uses.
  void add(torch::nn::Module& other) {
    for (auto const& one : other.named_buffers()) {
      names_.push_back(one.key());
      live_.push_back(one.value());
    }
  }

  void take();

  /// Restores the buffers if `kept`, a bool scalar on the buffers' device, is false. Synchronizes with the device only if a buffer was
  /// resized.
  void restore_unless(at::Tensor const& kept);

  /// Returns the name of the first buffer with an element that is NaN or infinite and was finite at the last take(), such as statistics
  /// that a finite batch made infinite; empty if there is none. Minus infinity is ignored, because masks contain it.
  std::string first_nonfinite_buffer() const;
  /// The same without synchronization: returns a bool scalar on `device`, true if there is such a buffer.
  at::Tensor any_nonfinite_on_device(at::Device device) const;

  /// Restores the buffers. Call at most once after each take(); allocates nothing.
  void restore();

 private:
  bool is_judged(std::size_t i) const {
    return fits(i) && live_[i].numel() > 0 && live_[i].layout() == at::kStrided && live_[i].is_floating_point() &&
           live_[i].element_size() > 1;
  }
  bool fits(std::size_t i) const {
    return copies_[i].defined() && copies_[i].sizes() == live_[i].sizes() &&
           copies_[i].scalar_type() == live_[i].scalar_type() && copies_[i].device() == live_[i].device();
  }

  std::vector<std::string> names_;
  std::vector<at::Tensor> live_;
  std::vector<at::Tensor> copies_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/core/buffers.ipp>
#endif
