// expect: U48
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

struct mine : keel::recipe<keel::clip::global_norm<1.0>> {};

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer) {
#ifdef KEEL_TWIN
  keel::step<mine> step{model, optimizer};
  keel::trainer<mine> run{model, optimizer, {.updates = 10}};
#else
  keel::step<mine> step{model, optimizer, {.clip = 1.0}};
  keel::trainer<mine> run{model, optimizer, {.clip = 1.0}, {.updates = 10}};
#endif
}
