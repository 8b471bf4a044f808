// expect: P11 G16
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>

#include <keel/step/step.hpp>

#ifdef KEEL_TWIN
using optimizer_type = torch::optim::AdamW;
#else
using optimizer_type = torch::optim::LBFGS;
#endif

struct clipped : keel::recipe<keel::clip::global_norm<1.0>> {};
struct scaled : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};

void build(torch::nn::Linear& model, optimizer_type& optimizer) {
  keel::step<clipped> first{model, optimizer};
  keel::step<scaled> second{model, optimizer};
}
