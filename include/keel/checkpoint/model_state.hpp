// A model's parameters and buffers by name:
//     keel::save_safetensors("model.safetensors", *model);         for keel::load_weights or any other reader
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <filesystem>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/checkpoint/tensor_slice.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// Returns the model's parameters and buffers by name. The tensors are not copied.
tensor_map model_tensors(torch::nn::Module& model);

/// Saves parameters and buffers as a safetensors file, replacing it atomically. Throws as save_safetensors for tensors does.
void save_safetensors(std::filesystem::path const& path, torch::nn::Module& model, string_map const& metadata = {});

/// Throws checkpoint_error (E04) with the first difference unless `saved` has exactly the model's tensors.
void require_same_model(tensor_map const& model, tensor_map const& saved, std::string const& source);

/// Copies saved values into the model in place, so that the optimizer's parameters stay valid.
void load_model(torch::nn::Module& model, tensor_map const& saved, std::string const& source);

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

/// Returns the tensors with the shapes of whole ones, for a comparison: the values of slices are not those of the result.
tensor_map expand_slices(tensor_map const& tensors, slice_map const& slices);

/// Copies the elements that two slices of a tensor share.
void copy_overlap(tensor_slice const& from, at::Tensor const& source, tensor_slice const& to, at::Tensor const& target);

/// Returns a copy of a slice of a whole tensor.
at::Tensor cut_slice(at::Tensor const& whole, tensor_slice const& slice);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/model_state.ipp>
#endif
