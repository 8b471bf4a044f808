// Definitions for lora.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/lora/lora.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY torch::autograd::variable_list int8_linear::backward(torch::autograd::AutogradContext* context,
                                                               torch::autograd::variable_list const& gradients) {
  auto const saved = context->get_saved_variables();
  at::Tensor const& gradient = gradients.front();
  return {at::matmul(gradient, wide(saved[0], saved[1], gradient.scalar_type())), at::Tensor(), at::Tensor()};
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY lora_module::lora_module(lora_options const& of) : options(of) {
  if (of.rank() < 1 || of.in_features() < 1 || of.out_features() < 1) {
    throw error("E12", c10::str("keel::lora of ", of.in_features(), " to ", of.out_features(), " features and rank ", of.rank(),
                                ". All three must be at least 1."));
  }
  at::NoGradGuard no_grad;
  // Initial values as in LibTorch's Linear: uniform, with the variance 1 / (3 in).
  double const bound = 1.0 / std::sqrt(static_cast<double>(of.in_features()));
  weight = register_parameter("weight", at::empty({of.out_features(), of.in_features()}).uniform_(-bound, bound), false);
  if (of.bias()) bias = register_parameter("bias", at::empty({of.out_features()}).uniform_(-bound, bound), false);
  scale = register_parameter("weight_scale", at::ones({of.out_features()}), false);
  down = register_parameter("lora_down", at::empty({of.rank(), of.in_features()}).uniform_(-bound, bound));
  up = register_parameter("lora_up", at::zeros({of.out_features(), of.rank()}));
}

KEEL_BODY at::Tensor lora_module::forward(at::Tensor const& x) const {
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

KEEL_BODY void lora_module::quantize() {
  if (is_quantized()) return;
  auto const [small, scales] = rounded();
  put(small, scales);
}

KEEL_BODY void lora_module::put(at::Tensor const& small, at::Tensor const& scales) {
  scale.set_data(scales);
  weight.set_data(small);
  quantized_ = true;
}

KEEL_BODY std::pair<at::Tensor, at::Tensor> lora_module::rounded() const {
  at::NoGradGuard no_grad;
  at::Tensor const scales = weight.detach().abs().amax(1).clamp_min(1e-30).to(at::kFloat) / 127.0;
  at::Tensor small = weight.detach().to(at::kFloat).div(scales.unsqueeze(1)).round_().clamp_(-127, 127).to(at::kChar);
  return {std::move(small), scales};
}

KEEL_BODY at::Tensor lora_module::merged() const {
  at::NoGradGuard no_grad;
  if (is_quantized()) require_eight_bits();
  at::Tensor const base =
      is_quantized() ? detail::int8_linear::wide(weight, scale, at::kFloat) : weight.detach().to(at::kFloat);
  return base + at::matmul(up.detach(), down.detach()).to(at::kFloat) * (options.alpha() / static_cast<double>(options.rank()));
}

KEEL_BODY void lora_module::require_eight_bits() const {
  if (weight.scalar_type() == at::kChar) return;
  throw error(
      "E12",
      "a keel::lora layer was quantized, and its weight is not int8 any more: it was moved to another dtype, or a dense "
      "file was loaded into it. Do both before keel::quantize_base, on a model that is newly built.");
}

KEEL_BODY std::vector<lora_module*> lora_layers(torch::nn::Module& model) {
  std::vector<lora_module*> found;
  for (auto const& module : model.modules(/*include_self=*/false)) {
    if (auto* const one = dynamic_cast<lora_module*>(module.get())) found.push_back(one);
  }
  if (auto* const itself = dynamic_cast<lora_module*>(&model)) found.push_back(itself);
  return found;
}

KEEL_BODY std::int64_t quantize_base(torch::nn::Module& model) {
  std::vector<std::pair<lora_module*, std::pair<at::Tensor, at::Tensor>>> rounded;
  for (lora_module* const layer : lora_layers(model)) {
    if (!layer->is_quantized()) rounded.emplace_back(layer, layer->rounded());
  }
  for (auto const& [layer, values] : rounded) layer->put(values.first, values.second);
  return static_cast<std::int64_t>(rounded.size());
}

KEEL_BODY std::vector<std::pair<std::string, lora_module*>> quantized_in(tensor_map const& saved, torch::nn::Module& model) {
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

KEEL_BODY void freeze_base(torch::nn::Module& model) {
  for (at::Tensor& parameter : model.parameters()) parameter.requires_grad_(false);
  for (lora_module* const layer : lora_layers(model)) {
    layer->down.requires_grad_(true);
    layer->up.requires_grad_(true);
  }
}

KEEL_BODY std::vector<at::Tensor> trained_parameters(torch::nn::Module& model) {
  std::vector<at::Tensor> trained;
  for (at::Tensor const& parameter : model.parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return trained;
}

KEEL_BODY void load_base(torch::nn::Module& model, tensor_map const& dense) {
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

KEEL_BODY void load_base(torch::nn::Module& model, torch::nn::Module& dense) { load_base(model, model_tensors(dense)); }

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
