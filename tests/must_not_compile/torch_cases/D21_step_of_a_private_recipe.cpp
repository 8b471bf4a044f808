// expect: D21
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/step/step.hpp>

#ifdef KEEL_TWIN
class mine : public keel::recipe<keel::clip::global_norm<1.0>> {};
#else
class mine : keel::recipe<keel::clip::global_norm<1.0>> {};
#endif

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, at::Tensor const& batch) {
  keel::step<mine> step{model, optimizer};
  step(batch, [&](at::Tensor const& x) { return model->forward(x).mean(); });
}
