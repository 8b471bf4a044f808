// expect: S17 Y01 Z08
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <keel/trainer/trainer.hpp>

using namespace keel::literals;

struct mine : keel::recipe<keel::checkpoint::every<500_steps>> {};

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, torch::optim::SGD& second, bool wanted) {
  keel::world_of_one const world;
  keel::trainer_options const options{.run_directory = "run"};
#ifdef KEEL_TWIN
  static_cast<void>(second);
  keel::trainer<mine> run{model, optimizer, options};
  run.save_if(keel::agree(world, wanted));
  run.log(keel::metric<keel::reduce::mean>("accuracy").reduced(world, 0.93));
#else
  static_cast<void>(world);
  keel::trainer<mine> run{model, optimizer, second, options};
  run.save_if(wanted);
  run.log("accuracy", 0.93);
#endif
}
