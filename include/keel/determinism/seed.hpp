// Seeds LibTorch's generators as the recipe's determinism policy says. A trainer does it before its first update; the model is
// older than the trainer, so call this before building it if its initial parameters are to repeat too.
#pragma once

#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/mode.hpp>
#include <keel/recipe/config_of.hpp>

namespace keel::inline KEEL_MODE {

/// With the seed of a policy as a value, for a recipe whose seed the program gives.
inline void seed(determinism::settings const& settings, at::DeviceType device = at::kCPU) {
  libtorch::seed_random(at::kCPU, settings.seed);
  if (device != at::kCPU) libtorch::seed_random(device, settings.seed);
}

/// False where a recipe has a seed, and the generator that a model's parameters are drawn from was not given it.
inline bool is_seeded(determinism::settings const& settings) {
  return settings.kind == determinism::kind::off || libtorch::seed_of_generator(at::kCPU) == settings.seed;
}

/// Seeds the generators of the CPU and of `device` as the recipe says. Each rank calls it before it builds its model.
template <class Recipe>
  requires(config_of<Recipe>.determinism.kind != determinism::kind::off && !is_given(config_of<Recipe>.determinism.seed))
void seed(at::DeviceType device = at::kCPU) {
  seed(config_of<Recipe>.determinism, device);
}

}  // namespace keel::inline KEEL_MODE
