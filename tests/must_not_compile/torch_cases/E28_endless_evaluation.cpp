// expect: E28
// Endless data to train on is nothing that an evaluation must know; endless data to evaluate on is.
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <keel/trainer/trainer.hpp>

using namespace keel::literals;

#ifdef KEEL_TWIN
using bound = keel::evaluation::batches<8>;
#else
using bound = keel::evaluation::batches<0>;
#endif

struct stream : std::vector<at::Tensor> {
  using facts = keel::data::is<keel::data::endless>;
};
struct mine : keel::recipe<keel::evaluation::every<100_steps, bound>> {};

void train(torch::nn::Linear& model, torch::optim::AdamW& optimizer, stream const& data, stream const& unseen) {
  auto loss_of = [&](at::Tensor const& x) { return model->forward(x).mean(); };
  keel::trainer<mine> run{model, optimizer, {.updates = 10}};
  run.evaluate_on(unseen, loss_of);
  run.fit(data, loss_of);
}
