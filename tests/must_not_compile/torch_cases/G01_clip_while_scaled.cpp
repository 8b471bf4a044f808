// expect: G01
#include <keel/step/gradients.hpp>

void update(std::vector<at::Tensor> const& parameters, torch::optim::Optimizer& optimizer) {
  auto sum = keel::begin_update(parameters).complete();
#ifdef KEEL_TWIN
  auto result = std::move(sum).unscale().check();
  auto& checked = std::get<keel::gradients<keel::stage::checked>>(result);
  std::move(checked).clip<keel::clip::global_norm<1.0>>().step(optimizer);
#else
  std::move(sum).clip<keel::clip::global_norm<1.0>>().step(optimizer);
#endif
}
