// Loads weights for inference, evaluation or further training from any of keel's outputs:
//     keel::load_weights(*model, "run");                      the newest undamaged checkpoint of a run directory
//     keel::load_weights(*model, "run", {.best = true});      the best checkpoint according to keep_best
//     keel::save_safetensors("weights.safetensors", keel::read_weights("run"));
// The source may also be a checkpoint directory, a safetensors file, or the index of a sharded one. A run directory is only
// read.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <filesystem>
#include <keel/checkpoint/tensor_map.hpp>
#include <keel/checkpoint/tensor_slice.hpp>

namespace keel::inline KEEL_MODE {

/// Selects the weights to load.
struct weights_choice {
  bool best = false;      ///< run directory: load the best checkpoint, not the newest
  bool averaged = false;  ///< checkpoint: load the moving average of keel::ema in place of the parameters
};

/// Copies parameters and buffers from `from` into the model, in place. Throws checkpoint_error (E04), before anything changes,
/// if the tensors do not match the model's. Throws checkpoint_error (E05) for damaged content and file_error (E02) if a file
/// cannot be read.
void load_weights(torch::nn::Module& model, std::filesystem::path const& from, weights_choice const& choice = {});

/// As above, into tensors by name. Of those in `slices` the tensor is this slice; the whole then need not fit into memory: safetensors files are
/// read one tensor at a time, and a checkpoint one file at a time, of which each rank of a sharded run has written one. Averages are read whole.
void load_weights(tensor_map const& own, slice_map const& slices, std::filesystem::path const& from,
                  weights_choice const& choice = {});

/// Returns parameters and buffers by name, in host memory. Those that ranks wrote in slices are joined. Throws as load_weights does.
tensor_map read_weights(std::filesystem::path const& from, weights_choice const& choice = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/load_weights.ipp>
#endif
