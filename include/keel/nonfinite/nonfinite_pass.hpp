// Determines whether a pass of the program makes non-finite values, to interpret an exception of LibTorch in it.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <functional>
#include <keel/core/parameters.hpp>
#include <keel/recompute/unit_scope.hpp>

namespace keel::inline KEEL_MODE {

/// Runs `pass`, which passes its argument to its unit_scope, and observes every operation. Returns true if an operation made a NaN, or an
/// infinity that was not passed as a scalar argument. An exception of LibTorch ends the pass and is not rethrown.
bool makes_nonfinite_values(torch::nn::Module& model, parameter_list const& parameters,
                            std::function<void(unit_listener*)> const& pass);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/nonfinite_pass.ipp>
#endif
