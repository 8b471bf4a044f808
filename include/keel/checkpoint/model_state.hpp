// A model's parameters and buffers by name.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <keel/checkpoint/safetensors_header.hpp>
#include <keel/core/error.hpp>
#include <string>
#include <vector>

namespace keel {

/// The model's own tensors by name, not copies.
inline tensor_map model_tensors(torch::nn::Module& model) {
  tensor_map tensors;
  for (auto const& item : model.named_parameters()) tensors.emplace(item.key(), item.value().detach());
  for (auto const& item : model.named_buffers()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

/// Throws checkpoint_error (E04), naming the first difference, unless `saved` has exactly the model's tensors.
inline void require_same_model(tensor_map const& model, tensor_map const& saved, std::string const& source) {
  std::string const way_out =
      " Build the model as it was, carry the checkpoint over with trainer::migrate, or use another run directory.";
  for (auto const& [name, tensor] : model) {
    auto const found = saved.find(name);
    if (found == saved.end()) {
      throw checkpoint_error("E04", source + " has no tensor " + name + ", which this model has." + way_out);
    }
    if (found->second.sizes() != tensor.sizes() || found->second.scalar_type() != tensor.scalar_type()) {
      throw checkpoint_error(
          "E04", source + ": " + name + " is " + c10::str(found->second.sizes(), " of ", found->second.scalar_type()) +
                     " and this model's is " + c10::str(tensor.sizes(), " of ", tensor.scalar_type()) + "." + way_out);
    }
  }
  for (auto const& [name, tensor] : saved) {
    if (model.find(name) == model.end()) {
      throw checkpoint_error("E04", source + " has a tensor " + name + ", which this model does not have." + way_out);
    }
  }
}

/// Copies saved values into the model, in place, so that the optimizer still holds the same parameters.
inline void load_model(torch::nn::Module& model, tensor_map const& saved, std::string const& source) {
  auto const own = model_tensors(model);
  require_same_model(own, saved, source);
  at::NoGradGuard no_grad;
  for (auto const& [name, tensor] : own) tensor.copy_(saved.at(name));
}

}  // namespace keel
