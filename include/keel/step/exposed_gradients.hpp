// Exposes unscaled gradients to hooks while the update works with scaled ones.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <keel/core/parameters.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Calls `show` while the parameters hold the unscaled gradients, then restores the original ones. A hook that only reads does not change
/// the update. Throws interference_error (E19) if a hook writes to them.
void show_gradients(parameter_list const& parameters, std::vector<at::Tensor> const& unscaled,
                    std::function<void()> const& show);

/// Returns unscaled copies of the gradients; undefined for a parameter without one.
std::vector<at::Tensor> unscaled_gradients(parameter_list const& parameters, at::Tensor const& unscaling);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/exposed_gradients.ipp>
#endif
