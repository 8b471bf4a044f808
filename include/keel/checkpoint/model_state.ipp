// Definitions for model_state.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/StringUtil.h>

#include <keel/checkpoint/model_state.hpp>
#include <keel/checkpoint/safetensors.hpp>
#include <keel/core/error.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY tensor_map model_tensors(torch::nn::Module& model) {
  tensor_map tensors;
  for (auto const& item : model.named_parameters()) tensors.emplace(item.key(), item.value().detach());
  for (auto const& item : model.named_buffers()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

KEEL_BODY void save_safetensors(std::filesystem::path const& path, torch::nn::Module& model, string_map const& metadata) {
  save_safetensors(path, model_tensors(model), metadata);
}

KEEL_BODY void require_same_model(tensor_map const& model, tensor_map const& saved, std::string const& source) {
  std::string const way_out =
      " Build the model as before, convert the checkpoint with trainer::migrate, or use another run directory.";
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

KEEL_BODY void load_model(torch::nn::Module& model, tensor_map const& saved, std::string const& source) {
  auto const own = model_tensors(model);
  require_same_model(own, saved, source);
  at::NoGradGuard no_grad;
  for (auto const& [name, tensor] : own) tensor.copy_(saved.at(name));
}

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY tensor_map expand_slices(tensor_map const& tensors, slice_map const& slices) {
  tensor_map expanded = tensors;
  for (auto const& [name, slice] : slices)
    expanded[name] = at::empty({}, tensors.at(name).options().device(at::kCPU)).expand(slice.sizes);
  return expanded;
}

KEEL_BODY void copy_overlap(tensor_slice const& from, at::Tensor const& source, tensor_slice const& to,
                            at::Tensor const& target) {
  std::int64_t const begin = std::max(from.begin, to.begin), end = std::min(from.begin + from.count, to.begin + to.count);
  if (begin >= end) return;
  target.narrow(0, begin - to.begin, end - begin).copy_(source.narrow(0, begin - from.begin, end - begin));
}

KEEL_BODY at::Tensor cut_slice(at::Tensor const& whole, tensor_slice const& slice) {
  at::Tensor same = whole.detach();
  if (same.strides() != slice.strides) same = at::empty_strided(slice.sizes, slice.strides, same.options()).copy_(same);
  return same.as_strided({slice.count}, {1}, same.storage_offset() + slice.begin).clone();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
