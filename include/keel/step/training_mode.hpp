// A model that the program's own test left in evaluation mode trains on without dropout, silently.
#pragma once

#include <keel/core/parameters.hpp>

namespace keel::detail::inline KEEL_MODE {

/// Before an update: throws error (E23) where the model was put into evaluation mode since an update in which it `was_training`, and has layers
/// to which that matters.
void require_training_mode(torch::nn::Module const& model, parameter_list const& parameters, bool& was_training);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/training_mode.ipp>
#endif
