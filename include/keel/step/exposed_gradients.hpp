// The gradients of an update for hooks that look at them, while the parameters hold those that are still scaled.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <keel/core/parameters.hpp>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Hooks find the unscaled gradients in the parameters, and the update goes on with those that were there: a hook that only
/// looks changes no bit. Throws interference_error (E19) for one that writes.
void show_gradients(parameter_list const& parameters, std::vector<at::Tensor> const& unscaled,
                    std::function<void()> const& show);

/// Undefined for a parameter without a gradient.
std::vector<at::Tensor> unscaled_gradients(parameter_list const& parameters, at::Tensor const& unscaling);

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/exposed_gradients.ipp>
#endif
