// keel::sgd: LibTorch's SGD in one pass over memory, fused with a keel step's unscaling and clipping. Supports momentum,
// dampening, Nesterov and weight decay. adam.hpp lists the vectorized cases.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <keel/libtorch/compatibility.hpp>
#include <keel/optimizer/chunks.hpp>
#include <keel/optimizer/conditional.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/optimizer/operands.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// LibTorch's SGD with a vectorized update. The constructors are LibTorch's.
class sgd : public torch::optim::SGD, public update_engine {
 public:
  using torch::optim::SGD::SGD;

  /// Applies one update with the gradients as they are, as LibTorch's step does.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

  void prepare() override;

  void forget_prepared() override;

  void update_with(double factor) override;

  void update_where(at::Tensor const& should_apply, at::Tensor const& factor) override;

  void undo_update() override;

  void move_state_to(std::shared_ptr<state_storage> home) override;

  std::function<void()> take_aside() override;

  at::Tensor master_of(at::Tensor const& parameter) const override { return masters_.saved(parameter); }
  void set_master(at::Tensor const& parameter, at::Tensor master) override { masters_.put(parameter, std::move(master)); }

 private:
  struct job {
    detail::operands operands;
    float* buffer;
    bool fresh;
    detail::sgd_coefficients coefficients;
    at::Tensor momentum;
    at::Tensor const* worked;
  };

  /// Returns the momentum buffer; undefined without momentum.
  at::Tensor momentum_of(at::Tensor const& parameter, torch::optim::SGDOptions const& options) {
    if (options.momentum() == 0.0) return {};
    return static_cast<torch::optim::SGDParamState&>(*state()[libtorch::state_key(parameter)]).momentum_buffer();
  }

  void add_job(at::Tensor const& parameter, at::Tensor const& worked, at::Tensor const& buffer, bool fresh,
               torch::optim::SGDOptions const& options, double factor);

  void update_by_operators(at::Tensor const& parameter, at::Tensor buffer, bool fresh, torch::optim::SGDOptions const& options,
                           double factor);

  void update_conditionally(at::Tensor const& parameter, at::Tensor buffer, torch::optim::SGDOptions const& options,
                            detail::conditional const& when);

  /// Copies state that operators worked on back to its home.
  void give_back(at::Tensor const& parameter, at::Tensor const& worked, at::Tensor const& home, at::Tensor const& buffer);

  detail::master_weights masters_;
  detail::state_place place_;
  std::unordered_set<c10::TensorImpl const*> fresh_;  ///< momentum buffers without a first gradient
  std::vector<at::Tensor> begun_;                     ///< momentum buffers that the last update_where filled
  std::vector<job> jobs_;
  detail::chunk_list chunks_;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/optimizer/sgd.ipp>
#endif
