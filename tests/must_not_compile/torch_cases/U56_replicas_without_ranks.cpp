// expect: U56
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/step/step.hpp>

struct mine : keel::recipe<keel::shard::replicate> {};

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, [[maybe_unused]] keel::world_of_ranks const& world) {
#ifdef KEEL_TWIN
  keel::step<mine> step{model, optimizer, world};
#else
  keel::step<mine> step{model, optimizer};
#endif
}
