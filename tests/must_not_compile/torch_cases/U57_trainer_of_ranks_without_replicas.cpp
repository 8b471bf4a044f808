// expect: U57
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::replicate> {};
#else
struct mine : keel::recipe<> {};
#endif

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, keel::world_of_ranks const& world) {
  keel::trainer<mine> run{model, optimizer, world};
}
