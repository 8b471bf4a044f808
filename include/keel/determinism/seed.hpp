// Seeds LibTorch's generators as the recipe's determinism policy says. A trainer does it before its first update; the model is
// older than the trainer, so call this before building it if its initial parameters are to repeat too.
#pragma once

#include <keel/libtorch/compatibility.hpp>
#include <keel/recipe/config_of.hpp>

namespace keel {

template <class Recipe>
  requires(config_of<Recipe>.determinism.kind != determinism::kind::off)
void seed(at::DeviceType device = at::kCPU) {
  libtorch::seed_random(at::kCPU, config_of<Recipe>.determinism.seed);
  if (device != at::kCPU) libtorch::seed_random(device, config_of<Recipe>.determinism.seed);
}

}  // namespace keel
