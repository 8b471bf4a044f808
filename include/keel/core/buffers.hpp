// Puts a model's buffers, such as batch norm's running statistics, back to where an update began. Every buffer is copied at
// every update: LibTorch's batch norm writes its statistics without counting the version up, so a version does not show it. A buffer
// that grew or shrank meanwhile, as a cache does, gets its size back too.
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
  /// Those of another model too, which a forward pass runs through.
  void add(torch::nn::Module& other) {
    for (auto const& one : other.named_buffers()) {
      names_.push_back(one.key());
      live_.push_back(one.value());
    }
  }

  void take();

  /// Restores where `kept`, a bool scalar on the buffers' device, is false; the host only waits for it where a buffer has
  /// another size.
  void restore_unless(at::Tensor const& kept);

  /// The first buffer with an element that is NaN or infinity and was finite at the last take(), such as statistics that a finite batch
  /// made infinite; empty: none has one. Minus infinity, of which masks are made, does not count.
  std::string first_nonfinite_buffer() const;
  /// The same where the host does not wait: a bool scalar on `device`, true where one has.
  at::Tensor any_nonfinite_on_device(at::Device device) const;

  /// Once after each take(); allocates nothing.
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
