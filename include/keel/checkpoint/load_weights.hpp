// Weights for inference, evaluation or another training, out of whatever keel writes:
//     keel::load_weights(*model, "run");                      the newest whole checkpoint of a run directory
//     keel::load_weights(*model, "run", {.best = true});      the one that keep_best calls the best
// also from one checkpoint's directory, a safetensors file, or the index of a sharded one. Nothing else of a run is touched.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <filesystem>
#include <keel/libtorch/mode.hpp>

namespace keel::inline KEEL_MODE {

/// Which weights to load.
struct weights_choice {
  bool best = false;      ///< of a run directory: the best and not the newest
  bool averaged = false;  ///< of a checkpoint: the moving average of keel::ema in the place of the parameters
};

/// Copies the parameters and buffers that `from` holds into the model, in place. Throws checkpoint_error: E04, before anything
/// changes, where its tensors are not the model's, E05 for what is damaged; file_error (E02).
void load_weights(torch::nn::Module& model, std::filesystem::path const& from, weights_choice const& choice = {});

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/checkpoint/load_weights.ipp>
#endif
