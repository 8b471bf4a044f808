// expect: G08
#include <keel/step/gradients.hpp>

void update(std::vector<at::Tensor> const& parameters, torch::optim::Optimizer& optimizer) {
  auto unscaled = keel::begin_update(parameters).complete().unscale();
#ifdef KEEL_TWIN
  auto result = std::move(unscaled).check();
  auto& checked = std::get<keel::gradients<keel::stage::checked>>(result);
  std::move(checked).clip<keel::clip::global_norm<1.0>>().step(optimizer);
#else
  std::move(unscaled).clip<keel::clip::global_norm<1.0>>().step(optimizer);
#endif
}
