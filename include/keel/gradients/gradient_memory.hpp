// Autograd lets parameters that were added as views share the memory of their gradients, which LibTorch then adds to and scales
// once for each of them: two accumulated passes give 1.5 times the gradient (pytorch/pytorch issue 34082).
#pragma once

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <span>

namespace keel::inline KEEL_MODE {

/// Gives every parameter its own gradient. Gradients that lie side by side in one storage, as cuDNN's of an RNN do, stay
/// there.
void separate_gradients(std::span<at::Tensor const> parameters);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/gradients/gradient_memory.ipp>
#endif
