// expect: D21
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::clip::global_norm<1.0>> {};
#else
using mine = keel::clip::global_norm<1.0>;
#endif

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, std::vector<at::Tensor> const& batches) {
  keel::trainer<mine> run{model, optimizer, {.updates = 10}};
  run.fit(batches, [&](at::Tensor const& x) { return model->forward(x).mean(); });
}
