// expect: G02
#include <keel/step/gradients.hpp>

void update(std::vector<at::Tensor> const& parameters, torch::optim::Optimizer& optimizer) {
  auto part = keel::begin_update(parameters);
#ifdef KEEL_TWIN
  auto result = std::move(part).complete().unscale().check();
  auto& checked = std::get<keel::gradients<keel::stage::checked>>(result);
  std::move(checked).clip<keel::clip::global_norm<1.0>>().step(optimizer);
#else
  std::move(part).clip<keel::clip::global_norm<1.0>>().step(optimizer);
#endif
}
