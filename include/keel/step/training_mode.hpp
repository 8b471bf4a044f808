// Detects a model that was left in evaluation mode, which would silently train without dropout.
#pragma once

#include <torch/nn/module.h>

#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Throws error (E23) if the model is in evaluation mode and has layers that depend on the mode. Accepts a model with at least one
/// submodule in training mode, because the mix is assumed to be deliberate.
void require_training_mode(torch::nn::Module const& model);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/training_mode.ipp>
#endif
