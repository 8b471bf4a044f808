// expect: U45
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <keel/trainer/trainer.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
using saves = keel::checkpoint::every<500_steps>;
#else
using saves = keel::checkpoint::never;
#endif
struct mine : keel::recipe<saves, keel::health::watch<keel::health::then<keel::health::sft, keel::health::checkpoint>>> {};

void build(torch::nn::Linear& model, torch::optim::SGD& optimizer) { keel::trainer<mine> run{model, optimizer}; }
