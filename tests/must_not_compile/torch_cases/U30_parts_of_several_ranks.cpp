// expect: U30
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/part.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::none> {};
#else
struct mine : keel::recipe<keel::shard::replicate> {};
#endif

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer) {
  keel::run<mine> run;
  keel::run<> other;
  keel::part<mine> one{other, "one", model, optimizer};
}
