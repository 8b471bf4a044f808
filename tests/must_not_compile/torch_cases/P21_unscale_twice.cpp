// expect: P21
#include <keel/step/gradients.hpp>

void update(std::vector<at::Tensor> const& parameters, torch::optim::Optimizer& optimizer) {
  auto unscaled = keel::begin_update(parameters).complete().unscale();
#ifdef KEEL_TWIN
  auto result = std::move(unscaled).check();
#else
  auto result = std::move(unscaled).unscale().check();
#endif
  auto& checked = std::get<keel::gradients<keel::stage::checked>>(result);
  std::move(checked).clip<keel::clip::global_norm<1.0>>().step(optimizer);
}
