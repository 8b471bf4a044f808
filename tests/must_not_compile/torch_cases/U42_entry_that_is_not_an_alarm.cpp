// expect: U42
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <keel/trainer/trainer.hpp>

#ifdef KEEL_TWIN
struct loss_rises {
  static constexpr keel::health::alarm configured{.name = "loss_rises",
                                                  .conditions = {{"train/loss", keel::health::is::rising, 1.5, 32}}};
};
#else
struct loss_rises {
  static constexpr double threshold = 1.5;
};
#endif
struct mine : keel::recipe<keel::health::watch<keel::health::sft, loss_rises>> {};

void build(torch::nn::Linear& model, torch::optim::SGD& optimizer) { keel::trainer<mine> run{model, optimizer}; }
