// Whether a pass of the program makes a value that is not finite: what an exception of LibTorch's in it is judged by.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <torch/nn/module.h>

#include <functional>
#include <keel/core/parameters.hpp>
#include <keel/recompute/unit_scope.hpp>

namespace keel::inline KEEL_MODE {

/// Runs `pass`, which hands what it is given to its unit_scope, and looks at every operation. True if one of them made a NaN, or an
/// infinity that it was not given as a number. What LibTorch throws in it ends the pass and is not passed on.
bool makes_nonfinite_values(torch::nn::Module& model, parameter_list const& parameters,
                            std::function<void(unit_listener*)> const& pass);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/nonfinite/nonfinite_pass.ipp>
#endif
