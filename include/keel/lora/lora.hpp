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

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <cstdint>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/core/error.hpp>
#include <keel/policy/model.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keel {

/// As LibTorch's options: `lora_options(in, out).rank(8).alpha(16)`.
class lora_options {
 public:
  lora_options(std::int64_t in_features, std::int64_t out_features) : in_(in_features), out_(out_features) {}
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
  lora_options& bias(bool value) {
    bias_ = value;
    return *this;
  }
  std::int64_t in_features() const { return in_; }
  std::int64_t out_features() const { return out_; }
  std::int64_t rank() const { return rank_; }
  double alpha() const { return alpha_; }
  double dropout() const { return dropout_; }
  bool bias() const { return bias_; }

 private:
  std::int64_t in_, out_;
  std::int64_t rank_ = 8;
  double alpha_ = 16.0;
  double dropout_ = 0.0;
  bool bias_ = true;
};

namespace detail {

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
                                                 torch::autograd::variable_list const& gradients) {
    auto const saved = context->get_saved_variables();
    at::Tensor const& gradient = gradients.front();
    return {at::matmul(gradient, wide(saved[0], saved[1], gradient.scalar_type())), at::Tensor(), at::Tensor()};
  }

  static at::Tensor wide(at::Tensor const& weight, at::Tensor const& scale, at::ScalarType type) {
    return weight.to(type).mul_(scale.to(type).unsqueeze(1));
  }
};

}  // namespace detail

class lora_module : public torch::nn::Module {
 public:
  using facts = model::has<model::adapters>;

  /// Throws error (E12) for a rank below one, or sizes that are none.
  explicit lora_module(lora_options const& of) : options(of) {
    if (of.rank() < 1 || of.in_features() < 1 || of.out_features() < 1) {
      throw error("E12", c10::str("keel::lora of ", of.in_features(), " to ", of.out_features(), " features and rank ",
                                  of.rank(), ". All three must be at least 1."));
    }
    at::NoGradGuard no_grad;
    // Linear's own initial values: uniform, with the variance 1 / (3 in).
    double const bound = 1.0 / std::sqrt(static_cast<double>(of.in_features()));
    weight = register_parameter("weight", at::empty({of.out_features(), of.in_features()}).uniform_(-bound, bound), false);
    if (of.bias()) bias = register_parameter("bias", at::empty({of.out_features()}).uniform_(-bound, bound), false);
    scale = register_parameter("weight_scale", at::ones({of.out_features()}), false);
    down = register_parameter("lora_down", at::empty({of.rank(), of.in_features()}).uniform_(-bound, bound));
    up = register_parameter("lora_up", at::zeros({of.out_features(), of.rank()}));
  }

  /// `x`: [.., in]; returns [.., out].
  at::Tensor forward(at::Tensor const& x) const {
    at::Tensor base;
    if (is_quantized()) {
      require_eight_bits();
      base = detail::int8_linear::apply(x, weight, scale);
      if (bias.defined()) base = base + bias.to(base.scalar_type());
    } else {
      base = bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
    }
    at::Tensor const in = options.dropout() > 0.0 ? at::dropout(x, options.dropout(), is_training()) : x;
    return base + at::linear(at::linear(in, down), up) * (options.alpha() / static_cast<double>(options.rank()));
  }

  bool is_quantized() const { return quantized_ || weight.scalar_type() == at::kChar; }

  /// Rounds the frozen weight to eight bits, each row to its own scale: the largest element becomes 127. What is rounded
  /// away is at most half a scale an element.
  void quantize() {
    if (is_quantized()) return;
    auto const [small, scales] = rounded();
    put(small, scales);
  }
  /// The same from values that were rounded before: `small` int8 [out, in], `scales` fp32 [out].
  void put(at::Tensor const& small, at::Tensor const& scales) {
    scale.set_data(scales);
    weight.set_data(small);
    quantized_ = true;
  }
  /// What quantize() would put.
  std::pair<at::Tensor, at::Tensor> rounded() const {
    at::NoGradGuard no_grad;
    at::Tensor const scales = weight.detach().abs().amax(1).clamp_min(1e-30).to(at::kFloat) / 127.0;
    at::Tensor small = weight.detach().to(at::kFloat).div(scales.unsqueeze(1)).round_().clamp_(-127, 127).to(at::kChar);
    return {std::move(small), scales};
  }

  /// The one dense weight that does the same, [out, in], fp32: what to export.
  at::Tensor merged() const {
    at::NoGradGuard no_grad;
    if (is_quantized()) require_eight_bits();
    at::Tensor const base =
        is_quantized() ? detail::int8_linear::wide(weight, scale, at::kFloat) : weight.detach().to(at::kFloat);
    return base +
           at::matmul(up.detach(), down.detach()).to(at::kFloat) * (options.alpha() / static_cast<double>(options.rank()));
  }

  lora_options options;
  at::Tensor weight, bias, scale, down, up;

 private:
  void require_eight_bits() const {
    if (weight.scalar_type() == at::kChar) return;
    throw error(
        "E12",
        "a keel::lora layer was quantized, and its weight is not int8 any more: it was moved to another dtype, or a dense "
        "file was loaded into it. Do both before keel::quantize_base, on a model that is newly built.");
  }

  bool quantized_ = false;
};
/// A module holder, as LibTorch's are.
class lora : public torch::nn::ModuleHolder<lora_module> {
 public:
  using torch::nn::ModuleHolder<lora_module>::ModuleHolder;
  using Impl = lora_module;
  lora(std::int64_t in_features, std::int64_t out_features) : lora(lora_options(in_features, out_features)) {}
};

/// The keel::lora layers of a model.
inline std::vector<lora_module*> lora_layers(torch::nn::Module& model) {
  std::vector<lora_module*> found;
  for (auto const& module : model.modules(/*include_self=*/false)) {
    if (auto* const one = dynamic_cast<lora_module*>(module.get())) found.push_back(one);
  }
  if (auto* const itself = dynamic_cast<lora_module*>(&model)) found.push_back(itself);
  return found;
}

/// Rounds the frozen weights of all keel::lora layers to eight bits, all or none where memory runs out; returns how many there
/// were that were not yet.
inline std::int64_t quantize_base(torch::nn::Module& model) {
  std::vector<std::pair<lora_module*, std::pair<at::Tensor, at::Tensor>>> rounded;
  for (lora_module* const layer : lora_layers(model)) {
    if (!layer->is_quantized()) rounded.emplace_back(layer, layer->rounded());
  }
  for (auto const& [layer, values] : rounded) layer->put(values.first, values.second);
  return static_cast<std::int64_t>(rounded.size());
}

/// The keel::lora layers whose weights are of eight bits in `saved` and not yet in the model, by the names of their weights.
inline std::vector<std::pair<std::string, lora_module*>> quantized_in(tensor_map const& saved, torch::nn::Module& model) {
  std::vector<std::pair<std::string, lora_module*>> found;
  auto const match = [&](torch::nn::Module& module, std::string const& name) {
    auto* const layer = dynamic_cast<lora_module*>(&module);
    auto const tensor = saved.find(name);
    if (layer == nullptr || layer->is_quantized() || tensor == saved.end()) return;
    bool const fits = tensor->second.scalar_type() == at::kChar && tensor->second.sizes() == layer->weight.sizes();
    if (fits) found.emplace_back(name, layer);
  };
  match(model, "weight");
  for (auto const& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    match(*item.value(), item.key() + ".weight");
  return found;
}

/// Freezes every parameter that is not a correction of a keel::lora layer. Build the optimizer afterwards, from
/// keel::trained_parameters.
inline void freeze_base(torch::nn::Module& model) {
  for (at::Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
  for (lora_module* const layer : lora_layers(model)) {
    layer->down.requires_grad_(true);
    layer->up.requires_grad_(true);
  }
}

/// The parameters that require grad, in the model's order.
inline std::vector<at::Tensor> trained_parameters(torch::nn::Module& model) {
  std::vector<at::Tensor> trained;
  for (at::Tensor const& parameter : model.parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return trained;
}

/// Copies the tensors of a dense model into one with keel::lora layers, by name; the corrections stay as they are. Throws
/// checkpoint_error (E04) for a tensor that is missing or of another shape, and changes nothing then.
inline void load_base(torch::nn::Module& model, tensor_map const& dense) {
  at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  auto const take = [&](std::string const& name, at::Tensor const& into) {
    std::string const last = name.substr(name.rfind('.') + 1);
    if (last == "lora_down" || last == "lora_up" || last == "weight_scale") return;
    auto const found = dense.find(name);
    if (found == dense.end() || found->second.sizes() != into.sizes()) {
      throw checkpoint_error("E04", "the dense model has no " + name + c10::str(" of shape ", into.sizes()) +
                                        ". Build the model with keel::lora in the places and sizes of its linear layers.");
    }
    if (into.scalar_type() == at::kChar) {
      throw checkpoint_error("E04", name + " has been quantized already. Load the dense weights first.");
    }
    copies.emplace_back(into, found->second);
  };
  for (auto const& item : model.named_parameters()) take(item.key(), item.value());
  for (auto const& item : model.named_buffers()) take(item.key(), item.value());
  for (auto const& [into, from] : copies) into.copy_(from);
}

}  // namespace keel
