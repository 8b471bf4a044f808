// expect: P11 U29 U29
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>

#include <keel/step/step.hpp>

#ifdef KEEL_TWIN
using optimizer_type = torch::optim::AdamW;
#else
using optimizer_type = torch::optim::LBFGS;
#endif

struct plain : keel::recipe<> {};
struct scaled : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};

void build(torch::nn::Linear& model, optimizer_type& optimizer) {
  keel::step<plain> first{model, optimizer};
  keel::step<scaled> second{model, optimizer};
}
