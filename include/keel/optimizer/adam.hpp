// keel::adamw and keel::adam: LibTorch's AdamW and Adam in one pass over memory, fused with a keel step's unscaling and
// clipping. Options, parameter groups, state and checkpoints are LibTorch's, so they are drop-in replacements:
//     keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1));
// Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization"; Kingma & Ba 2015.
// fp32, bf16 and fp16 on the CPU run vectorized and multi-threaded; other dtypes, devices and layouts use LibTorch's operators.
// bf16 and fp16 parameters have an fp32 master copy, which is updated. Values that the program writes into such a parameter are
// copied to it at the next update. Sparse gradients are rejected (E11).
// torch::save writes LibTorch's state without the master copies: after torch::load they are created from the rounded
// parameters. keel's checkpoints include them.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <functional>
#include <keel/optimizer/chunks.hpp>
#include <keel/optimizer/conditional.hpp>
#include <keel/optimizer/engine.hpp>
#include <keel/optimizer/operands.hpp>
#include <keel/optimizer/parameter_state.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

template <class Base>
struct adam_types;
template <>
struct adam_types<torch::optim::AdamW> {
  using options = torch::optim::AdamWOptions;
  using state = torch::optim::AdamWParamState;
  static constexpr bool decoupled = true;
};
template <>
struct adam_types<torch::optim::Adam> {
  using options = torch::optim::AdamOptions;
  using state = torch::optim::AdamParamState;
  static constexpr bool decoupled = false;
};

/// The base of keel::adam and keel::adamw: LibTorch's constructors, options and state, with a vectorized update.
template <class Base>
class adam_engine : public Base, public update_engine {
  using options_type = typename adam_types<Base>::options;
  using state_type = typename adam_types<Base>::state;
  static constexpr bool decoupled = adam_types<Base>::decoupled;

 public:
  using Base::Base;

  /// Applies one update with the gradients as they are, as LibTorch's step does.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;

  void prepare() override;

  // No state needs to be removed: zero moments equal the state of an optimizer without a step.
  void forget_prepared() override { entries_.clear(); }

  void update_with(double factor) override;

  void update_where(at::Tensor const& should_apply, at::Tensor const& factor) override;

  void undo_update() override;

  void move_state_to(std::shared_ptr<state_storage> home) override;

  std::function<void()> take_aside() override;

  at::Tensor master_of(at::Tensor const& parameter) const override { return masters_.saved(parameter); }
  void set_master(at::Tensor const& parameter, at::Tensor master) override { masters_.put(parameter, std::move(master)); }

 private:
  /// A parameter with a gradient. The pointers into the optimizer's groups and state are valid from prepare to update_with.
  struct entry {
    at::Tensor const* parameter;
    state_type* state;
    options_type const* options;
  };
  /// The coefficients in double precision, before they are rounded to the kernel's float.
  struct exact {
    double factor, weight_decay, lr, beta1, beta2, eps, step_size, inverse_root_correction2;
  };
  struct job {
    detail::operands operands;
    float* average;
    float* square;
    float* largest;
    adam_coefficients coefficients;
    at::Tensor const* worked;
    state_type const* state;
  };

  static exact coefficients(options_type const& options, std::int64_t step, double factor);

  void add_job(at::Tensor const& parameter, at::Tensor const& worked, state_type& state, bool amsgrad, exact const& c);

  /// A parameter's state on the parameter's device, where operators work on it. give_back() copies it to its storage.
  struct borrowed {
    borrowed(at::Tensor const& parameter, at::Tensor const& master, state_type& of, state_place const& place)
        : master_(master),
          state_(of),
          place_(place),
          worked(beside(parameter, master)),
          average(beside(parameter, of.exp_avg())),
          square(beside(parameter, of.exp_avg_sq())),
          largest(beside(parameter, of.max_exp_avg_sq())) {}
    void give_back() {
      return_to(master_, worked);
      return_to(state_.exp_avg(), average);
      return_to(state_.exp_avg_sq(), square);
      return_to(state_.max_exp_avg_sq(), largest);
      place_.release(master_);
      place_.release(state_.exp_avg());
      place_.release(state_.exp_avg_sq());
      place_.release(state_.max_exp_avg_sq());
    }

   private:
    at::Tensor const& master_;
    state_type& state_;
    state_place const& place_;

   public:
    at::Tensor worked, average, square, largest;
  };

  void update_by_operators(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c);

  void update_conditionally(at::Tensor const& parameter, state_type& state, bool amsgrad, exact const& c,
                            conditional const& when);

  /// Returns true if LibTorch's fused kernel can be used. It takes the gradient scale in fp32, which would round the update of
  /// wider parameters, and reads tensors in memory order.
  static bool suits_fused_kernel(at::Tensor const& parameter, state_type const& state, bool amsgrad);

  /// Uses LibTorch's fused kernel, which divides by the scale, also in the gradients, and changes nothing if found_inf is 1.
  /// All entries must be at the same step.
  static void update_fused(std::vector<entry> const& entries, options_type const& options, std::int64_t step,
                           conditional const& when);

  master_weights masters_;
  state_place place_;
  // Empty between updates; kept for their capacity.
  std::vector<entry> entries_;
  std::vector<state_type*> counted_;  ///< state counted by the last update_where
  std::vector<job> jobs_;
  chunk_list chunks_;
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// AdamW: decoupled weight decay, applied to the parameter.
class adamw : public detail::adam_engine<torch::optim::AdamW> {
 public:
  using adam_engine::adam_engine;
};

/// Adam: weight decay is added to the gradient.
class adam : public detail::adam_engine<torch::optim::Adam> {
 public:
  using adam_engine::adam_engine;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/optimizer/adam.ipp>
#endif
