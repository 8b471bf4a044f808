// Detects a model that was left in evaluation mode, which would silently train without dropout.
#pragma once

#include <torch/nn/module.h>

#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Throws error (E23) if the model is in evaluation mode and has layers that depend on the mode. Accepts a model of which any submodule
/// trains: the mix is deliberate.
void require_training_mode(torch::nn::Module const& model);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/training_mode.ipp>
#endif
