// Fine-tuning that unfreezes a network from its head down, a layer in every second epoch (Howard & Ruder 2018, "ULMFiT"), each with a lower rate than
// the one above it. What is trained is in the checkpoint: a resume knows it.
// [unfreeze]
#include <keel/keel.hpp>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <memory>

using namespace keel::literals;

struct fine_tuning : keel::recipe<
    keel::clip::global_norm<1.0>,
    keel::nonfinite::skip<10>,
    keel::schedule::cosine<keel::schedule::warmup<20_steps>>,
    keel::checkpoint::every<25_steps>,
    keel::determinism::seeded<3>> {};

struct network : torch::nn::Module {
  torch::nn::Linear bottom{register_module("bottom", torch::nn::Linear(16, 64))};
  torch::nn::Linear middle{register_module("middle", torch::nn::Linear(64, 64))};
  torch::nn::Dropout drop{register_module("drop", torch::nn::Dropout(0.1))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(64, 4))};
  at::Tensor forward(at::Tensor const& x) { return head(drop(at::relu(middle(at::relu(bottom(x)))))); }
};

int main(int count, char** arguments) {
  keel::seed<fine_tuning>();
  auto const model = std::make_shared<network>();
  for (auto const& layer : {model->bottom, model->middle}) {
    for (at::Tensor const& one : layer->parameters()) one.requires_grad_(false);
  }
  keel::adamw optimizer(model->head->parameters(), 1e-2);   // of what is trained at first

  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int i = 0; i < 60; ++i) {
    at::Tensor const x = at::randn({32, 16});
    batches.emplace_back(x, (x.narrow(1, 0, 4) * x.narrow(1, 4, 4)).argmax(1));
  }

  keel::trainer<fine_tuning> run{model, optimizer,
                                 {.run_directory = count > 1 ? arguments[1] : "runs/unfreeze",
                                  .epochs = 6,
                                  .batches_per_epoch = static_cast<std::int64_t>(batches.size()),
                                  .console_every = 60}};
  run.on([&](keel::event::epoch_begin const& begin) {
    if (begin.epoch >= 2) run.unfreeze(model->middle, 3e-3);
    if (begin.epoch >= 4) run.unfreeze(model->bottom, 1e-3);
  });
  keel::outcome const ended = run.fit(batches, [&](std::pair<at::Tensor, at::Tensor> const& batch) {
    return at::cross_entropy_loss(model->forward(batch.first), batch.second);
  });
  if (ended.gave_up()) return keel::exit_code_of(ended);
  std::printf("%zu groups, bottom %.17g, head %.17g\n", optimizer.param_groups().size(), model->bottom->weight.sum().item<double>(),
              model->head->weight.sum().item<double>());
}
// [unfreeze]
