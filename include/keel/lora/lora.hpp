// keel::lora: a linear layer whose weight is frozen, with a small trained correction beside it (Hu et al. 2021, "LoRA"):
//     y = x W^T + b + alpha / rank * (x A^T) B^T           A: down, [rank, in]; B: up, [out, rank]
// It stands wherever torch::nn::Linear does, under the same names, so that a checkpoint of the dense model fits:
//     keel::lora query_key_value{keel::lora_options(width, 3 * width).rank(8)};
//     keel::freeze_base(*model);                           everything but the corrections
//     keel::quantize_base(*model);                         the frozen weights in eight bits, one scale a row (Dettmers et al.
//                                                          2022, "LLM.int8()", without its outliers)
// oom::quantize_base does the last by itself when memory runs out before the first update.
// Left out: four bits, which need a special kernel to be worth it, and corrections of convolutions.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <cstdint>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/core/error.hpp>
#include <keel/policy/model.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// As LibTorch's options: `lora_options(in, out).rank(8).alpha(16)`.
class lora_options {
 public:
  /// A layer from `in_features` to `out_features`.
  lora_options(std::int64_t in_features, std::int64_t out_features) : in_(in_features), out_(out_features) {}
  /// The rank of the correction.
  lora_options& rank(std::int64_t value) {
    rank_ = value;
    return *this;
  }
  /// The correction counts alpha / rank.
  lora_options& alpha(double value) {
    alpha_ = value;
    return *this;
  }
  /// Of the correction's input, while training.
  lora_options& dropout(double value) {
    dropout_ = value;
    return *this;
  }
  /// Whether the layer has a bias, which is frozen as its weight is.
  lora_options& bias(bool value) {
    bias_ = value;
    return *this;
  }
  /// As given.
  std::int64_t in_features() const { return in_; }
  /// As given.
  std::int64_t out_features() const { return out_; }
  /// As given.
  std::int64_t rank() const { return rank_; }
  /// As given.
  double alpha() const { return alpha_; }
  /// As given.
  double dropout() const { return dropout_; }
  /// As given.
  bool bias() const { return bias_; }

 private:
  std::int64_t in_, out_;
  std::int64_t rank_ = 8;
  double alpha_ = 16.0;
  double dropout_ = 0.0;
  bool bias_ = true;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// A product with a frozen weight of eight bits. Nothing of the input is kept for the backward pass, and the weight is wide for
/// the length of one product only.
class int8_linear : public torch::autograd::Function<int8_linear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor const& x, at::Tensor const& weight,
                            at::Tensor const& scale) {
    context->save_for_backward({weight, scale});
    return at::matmul(x, wide(weight, scale, x.scalar_type()).t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients);

  static at::Tensor wide(at::Tensor const& weight, at::Tensor const& scale, at::ScalarType type) {
    return weight.to(type).mul_(scale.to(type).unsqueeze(1));
  }
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// The module behind keel::lora.
class lora_module : public torch::nn::Module {
 public:
  using facts = model::has<model::adapters>;  ///< what rules know of a model with such layers

  /// Throws error (E12) for a rank below one, or sizes that are none.
  explicit lora_module(lora_options const& of);
  /// With the options' defaults.
  lora_module(std::int64_t in_features, std::int64_t out_features) : lora_module(lora_options(in_features, out_features)) {}

  /// `x`: [.., in]; returns [.., out].
  at::Tensor forward(at::Tensor const& x) const;

  /// True where the frozen weight is held in eight bits.
  bool is_quantized() const { return quantized_ || weight.scalar_type() == at::kChar; }

  /// Rounds the frozen weight to eight bits, each row to its own scale: the largest element becomes 127. What is rounded
  /// away is at most half a scale an element.
  void quantize();
  /// The same from values that were rounded before: `small` int8 [out, in], `scales` fp32 [out].
  void put(at::Tensor const& small, at::Tensor const& scales);
  /// What quantize() would put.
  std::pair<at::Tensor, at::Tensor> rounded() const;

  /// The one dense weight that does the same, [out, in], fp32: what to export.
  at::Tensor merged() const;

  lora_options options;  ///< with which it was made
  at::Tensor weight;     ///< frozen, [out, in]; int8 where it is quantized
  at::Tensor bias;       ///< frozen, [out]; undefined without one
  at::Tensor scale;      ///< of a quantized weight, [out], fp32
  at::Tensor down;       ///< trained, [rank, in]
  at::Tensor up;         ///< trained, [out, rank]

 private:
  void require_eight_bits() const;

  bool quantized_ = false;
};
/// A module holder, as LibTorch's are.
class lora : public torch::nn::ModuleHolder<lora_module> {
 public:
  using torch::nn::ModuleHolder<lora_module>::ModuleHolder;
  using Impl = lora_module;  ///< as LibTorch's holders name it
};

/// The keel::lora layers of a model.
std::vector<lora_module*> lora_layers(torch::nn::Module& model);

/// Rounds the frozen weights of all keel::lora layers to eight bits, all or none where memory runs out; returns how many there
/// were that were not yet.
std::int64_t quantize_base(torch::nn::Module& model);

/// The keel::lora layers whose weights are of eight bits in `saved` and not yet in the model, by the names of their weights.
std::vector<std::pair<std::string, lora_module*>> quantized_in(tensor_map const& saved, torch::nn::Module& model);

/// Freezes every parameter that is not a correction of a keel::lora layer. Build the optimizer afterwards, from
/// keel::trained_parameters.
void freeze_base(torch::nn::Module& model);

/// The parameters that require grad, in the model's order.
std::vector<at::Tensor> trained_parameters(torch::nn::Module& model);

/// Copies the tensors of a dense model into one with keel::lora layers, by name; the corrections stay as they are. Throws
/// checkpoint_error (E04) for a tensor that is missing or of another shape, and changes nothing then.
void load_base(torch::nn::Module& model, tensor_map const& dense);
/// The same from a dense model.
void load_base(torch::nn::Module& model, torch::nn::Module& dense);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/lora/lora.ipp>
#endif
