// expect: O03
#include <keel/step/gradients.hpp>

double update(std::vector<at::Tensor> const& parameters, torch::optim::Optimizer& optimizer) {
  auto result = keel::begin_update(parameters).complete().unscale().check();
  auto& checked = std::get<keel::gradients<keel::stage::checked>>(result);
  auto stepped = std::move(checked).clip<keel::clip::global_norm<1.0>>().step(optimizer);
#ifndef KEEL_TWIN
  stepped.step(optimizer);
#endif
  return stepped.norm();
}
