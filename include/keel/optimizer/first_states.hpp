// Allocates the per-parameter state of LibTorch's Adam, AdamW and RMSprop before any parameter changes, so that running out of
// memory only costs the update. Their steps also make temporary allocations, which may still fail. keel's own optimizers
// prepare everything they need (engine.hpp).
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
  /// Removes the state unless keep() was called, because the update did not take place.
  ~first_states() { forget(); }

  /// Creates the optimizer's initial state for each parameter that has a gradient but no state. Temporary memory of a step, and
  /// the momentum of SGD, which the step creates from the gradient, is allocated and released, to test that it is available.
  void make(torch::optim::Optimizer& optimizer);
  /// Keeps the state; call when the step begins.
  void keep() { optimizer_ = nullptr; }

 private:
  void forget() noexcept;

  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<at::Tensor> made_;  ///< parameters whose state was created here
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/optimizer/first_states.ipp>
#endif
