// expect: G12 G12 G12 G12
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <keel/step/gradients.hpp>

void update(std::vector<at::Tensor> const& parameters, torch::optim::SGD& first, torch::optim::AdamW& second,
            torch::optim::RMSprop& third, torch::optim::Adagrad& fourth) {
  auto part = keel::begin_update(parameters);
#ifndef KEEL_TWIN
  part.step(first);
#endif
  auto sum = std::move(part).complete();
#ifndef KEEL_TWIN
  sum.step(second);
#endif
  auto unscaled = std::move(sum).unscale();
#ifndef KEEL_TWIN
  unscaled.step(third);
#endif
  auto result = std::move(unscaled).check();
  auto& checked = std::get<keel::gradients<keel::stage::checked>>(result);
#ifndef KEEL_TWIN
  checked.step(fourth);
#endif
  std::move(checked).clip<keel::clip::global_norm<1.0>>().step(first);
#ifdef KEEL_TWIN
  static_cast<void>(second), static_cast<void>(third), static_cast<void>(fourth);
#endif
}
