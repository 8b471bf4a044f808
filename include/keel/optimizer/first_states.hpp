// What LibTorch's Adam, AdamW and RMSprop keep of each parameter, allocated before any parameter has changed: memory that runs out there
// costs the update and nothing else. Their steps allocate more for a moment, of which that is not certain: keel's own optimizers prepare all
// that they need (engine.hpp).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/optim/optimizer.h>

#include <keel/libtorch/mode.hpp>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class first_states {
 public:
  first_states() = default;
  first_states(first_states&& other) noexcept
      : optimizer_(std::exchange(other.optimizer_, nullptr)), made_(std::move(other.made_)) {}
  first_states& operator=(first_states&& other) noexcept {
    std::swap(optimizer_, other.optimizer_);
    std::swap(made_, other.made_);
    return *this;
  }
  /// Of an update that does not take place no state is left.
  ~first_states() { forget(); }

  /// For the parameters that have a gradient and no state, with the values that the optimizer begins with. What a step needs for a moment,
  /// and the momentum of SGD, which begins as its gradient, is allocated and released: it is there in the next moment too.
  void make(torch::optim::Optimizer& optimizer);
  /// The step begins.
  void keep() { optimizer_ = nullptr; }

 private:
  void forget() noexcept;

  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<at::Tensor> made_;  ///< the parameters
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/optimizer/first_states.ipp>
#endif
