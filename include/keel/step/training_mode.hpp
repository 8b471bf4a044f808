// A model that a program left in evaluation mode would train without dropout, silently.
#pragma once

#include <torch/nn/module.h>

#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Before an update: throws error (E23) for a model in evaluation mode that has layers to which that matters. Layers in evaluation mode of
/// a model that trains are as the program wants them.
void require_training_mode(torch::nn::Module const& model);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/training_mode.ipp>
#endif
