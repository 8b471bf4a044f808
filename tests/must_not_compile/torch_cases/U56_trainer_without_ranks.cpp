// expect: U56
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

struct mine : keel::recipe<keel::shard::replicate> {};

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, [[maybe_unused]] keel::world_of_ranks const& world) {
#ifdef KEEL_TWIN
  keel::trainer<mine> run{model, optimizer, world};
#else
  keel::trainer<mine> run{model, optimizer};
#endif
}
