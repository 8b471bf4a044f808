// keel::lora: a linear layer with a frozen weight and a small trained correction (Hu et al. 2021, "LoRA"):
//     y = x W^T + b + alpha / rank * (x A^T) B^T           A: down, [rank, in]; B: up, [out, rank]
// It replaces torch::nn::Linear and has the same parameter names, so that a checkpoint of the dense model can be loaded:
//     keel::lora query_key_value{keel::lora_options(width, 3 * width).rank(8)};
//     keel::freeze_base(*model);                           everything but the corrections
//     keel::quantize_base(*model);                         frozen weights in int8, one scale per row (Dettmers et al. 2022,
//                                                          "LLM.int8()", without its outliers)
// oom::quantize_base calls the last one automatically if memory runs out before the first update. Not supported: four bits,
// which only pay off with a special kernel, and corrections of convolutions.
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

/// Options in LibTorch's style: `lora_options(in, out).rank(8).alpha(16)`.
class lora_options {
 public:
  /// A layer from `in_features` to `out_features`.
  lora_options(std::int64_t in_features, std::int64_t out_features) : in_(in_features), out_(out_features) {}
  /// Sets the rank of the correction.
  lora_options& rank(std::int64_t value) {
    rank_ = value;
    return *this;
  }
  /// Sets alpha: the correction is scaled by alpha / rank.
  lora_options& alpha(double value) {
    alpha_ = value;
    return *this;
  }
  /// Sets the dropout probability of the correction's input during training.
  lora_options& dropout(double value) {
    dropout_ = value;
    return *this;
  }
  /// Sets whether the layer has a bias, which is frozen like the weight.
  lora_options& bias(bool value) {
    bias_ = value;
    return *this;
  }
  /// Returns the number of input features.
  std::int64_t in_features() const { return in_; }
  /// Returns the number of output features.
  std::int64_t out_features() const { return out_; }
  /// Returns the rank.
  std::int64_t rank() const { return rank_; }
  /// Returns alpha.
  double alpha() const { return alpha_; }
  /// Returns the dropout probability.
  double dropout() const { return dropout_; }
  /// Returns whether the layer has a bias.
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

/// Product with a frozen int8 weight. Saves no input for the backward pass, and holds the dequantized weight only during one
/// product.
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

/// The module of keel::lora.
class lora_module : public torch::nn::Module {
 public:
  using facts = model::has<model::adapters>;  ///< facts for the rules about a model with such layers

  /// Throws error (E12) for a rank below 1 or invalid sizes.
  explicit lora_module(lora_options const& of);
  /// Uses the options' defaults.
  lora_module(std::int64_t in_features, std::int64_t out_features) : lora_module(lora_options(in_features, out_features)) {}

  /// `x`: [.., in]; returns [.., out].
  at::Tensor forward(at::Tensor const& x) const;

  /// True if the frozen weight is stored as int8.
  bool is_quantized() const { return quantized_ || weight.scalar_type() == at::kChar; }

  /// Quantizes the frozen weight to int8 with one scale per row: the largest element becomes 127. The error of an element is at
  /// most half the scale.
  void quantize();
  /// The same with already quantized values: `small` int8 [out, in], `scales` fp32 [out].
  void put(at::Tensor const& small, at::Tensor const& scales);
  /// Returns the values that quantize() would store.
  std::pair<at::Tensor, at::Tensor> rounded() const;

  /// Returns the equivalent dense weight, [out, in], fp32, for export.
  at::Tensor merged() const;

  lora_options options;  ///< options at construction
  at::Tensor weight;     ///< frozen, [out, in]; int8 if quantized
  at::Tensor bias;       ///< frozen, [out]; undefined without one
  at::Tensor scale;      ///< scale of a quantized weight, [out], fp32
  at::Tensor down;       ///< trained, [rank, in]
  at::Tensor up;         ///< trained, [out, rank]

 private:
  void require_eight_bits() const;

  bool quantized_ = false;
};
/// A module holder in LibTorch's style.
class lora : public torch::nn::ModuleHolder<lora_module> {
 public:
  using torch::nn::ModuleHolder<lora_module>::ModuleHolder;
  using Impl = lora_module;  ///< named as in LibTorch's holders
};

/// Returns the keel::lora layers of a model.
std::vector<lora_module*> lora_layers(torch::nn::Module& model);

/// Quantizes the frozen weights of all keel::lora layers to int8; if memory runs out, of none. Returns the number of layers
/// that were not quantized before.
std::int64_t quantize_base(torch::nn::Module& model);

/// Returns the keel::lora layers whose weights are int8 in `saved` but not yet in the model, with the names of their weights.
std::vector<std::pair<std::string, lora_module*>> quantized_in(tensor_map const& saved, torch::nn::Module& model);

/// Freezes every parameter that is not a correction of a keel::lora layer. Build the optimizer afterwards, from
/// keel::trained_parameters.
void freeze_base(torch::nn::Module& model);

/// Returns the parameters that require grad, in the model's order.
std::vector<at::Tensor> trained_parameters(torch::nn::Module& model);

/// Copies the tensors of a dense model into one with keel::lora layers, by name. The corrections are unchanged. Throws
/// checkpoint_error (E04), before anything changes, for a tensor that is missing or has another shape.
void load_base(torch::nn::Module& model, tensor_map const& dense);
/// The same from a dense model.
void load_base(torch::nn::Module& model, torch::nn::Module& dense);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/lora/lora.ipp>
#endif
