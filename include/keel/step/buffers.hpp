// Puts a model's buffers, such as batch norm's running statistics, back to where a window began. A buffer is copied again
// only after it was written to, so constant buffers cost one copy in a run.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace keel {

class buffer_snapshot {
 public:
  explicit buffer_snapshot(torch::nn::Module& model) {
    for (at::Tensor const& buffer : model.buffers()) entries_.push_back({buffer, {}, 0});
  }

  void take() {
    at::NoGradGuard no_grad;
    for (entry& one : entries_) {
      if (one.copy.defined() && one.version == one.buffer._version()) continue;
      one.copy = one.buffer.detach().clone();
      one.version = one.buffer._version();
    }
  }

  void restore() {
    at::NoGradGuard no_grad;
    for (entry& one : entries_) {
      if (!one.copy.defined() || one.version == one.buffer._version()) continue;
      one.buffer.copy_(one.copy);
      one.version = one.buffer._version();
    }
  }

 private:
  struct entry {
    at::Tensor buffer;
    at::Tensor copy;
    std::int64_t version;
  };
  std::vector<entry> entries_;
};

}  // namespace keel
