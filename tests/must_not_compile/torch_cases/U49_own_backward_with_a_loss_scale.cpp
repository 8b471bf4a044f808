// expect: U49 U50
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

#ifdef KEEL_TWIN
struct scaled : keel::recipe<keel::precision::bf16> {};
struct with_ladder : keel::recipe<> {};
#else
struct scaled : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};
struct with_ladder : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, at::Tensor const& x) {
  keel::step<scaled> step{model, optimizer};
  {
    auto micro_batch = step.open();
    at::Tensor const loss = model->forward(x).mean();
    loss.backward();
    micro_batch.close(loss);
  }
  keel::trainer<with_ladder> run{model, optimizer, {.updates = 10}};
  auto micro_batch = run.open();
  at::Tensor const loss = model->forward(x).mean();
  loss.backward();
  micro_batch.close(loss);
}
