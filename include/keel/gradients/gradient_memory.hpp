// If a model adds views of several parameters, autograd may let their gradients share memory. LibTorch then accumulates into
// and scales the shared memory once per parameter: two accumulated passes give 1.5 times the gradient (pytorch/pytorch issue
// 34082).
#pragma once

#include <ATen/core/Tensor.h>

#include <keel/libtorch/mode.hpp>
#include <span>

namespace keel::inline KEEL_MODE {

/// Gives every parameter a separate gradient. Gradients that occupy disjoint parts of one storage, such as cuDNN's of an RNN,
/// are unchanged.
void separate_gradients(std::span<at::Tensor const> parameters);

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/gradients/gradient_memory.ipp>
#endif
