// A classifier with accuracy as the monitored metric: evaluated and saved once an epoch, the best checkpoint kept, loaded and used.
//     examples/run classifier [RUN_DIRECTORY] [EPOCHS]
#include <keel/keel.hpp>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <cstdlib>

using namespace keel::literals;

namespace {

struct recipe : keel::recipe<
    keel::determinism::seeded<7>,
    keel::clip::global_norm<1.0>,
    keel::schedule::cosine<>,
    keel::ema<0.9, keel::ema_buffers>,
    keel::evaluation::every<1_epochs, keel::evaluation::monitor<"accuracy">, keel::evaluation::larger_is_better,
                            keel::evaluation::averaged, keel::evaluation::early_stop<10>>,
    keel::checkpoint::every<1_epochs, keel::checkpoint::keep_best, keel::checkpoint::by_evaluation>> {};

/// Points [rows, 2] and their classes [rows].
using data_set = std::pair<at::Tensor, at::Tensor>;

/// Three arms of a spiral, 300 points each, with noise.
data_set spiral(std::uint64_t seed) {
  keel::libtorch::seed_random(at::kCPU, seed);
  at::Tensor const classes = at::arange(900).remainder(3);
  at::Tensor const radius = at::rand(900);
  at::Tensor const angle = radius * 5 + classes * 2.0944 + at::randn(900) * 0.15;
  return {at::stack({radius * angle.cos(), radius * angle.sin()}, 1), classes};
}

}  // namespace

int main(int argc, char** argv) try {
  data_set const train = spiral(1);
  data_set const unseen = spiral(2);
  keel::seed<recipe>();
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::BatchNorm1d(64), torch::nn::ReLU(), torch::nn::Linear(64, 3));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.03));
  keel::shuffled_batches const order{{.rows = 900, .batch = 50, .seed = 3}};

  keel::trainer<recipe> run{model, optimizer,
                            {.run_directory = argc > 1 ? argv[1] : "runs/classifier",
                             .epochs = argc > 2 ? std::atoi(argv[2]) : 20,
                             .batches_per_epoch = order.size(),
                             .console_every = 90}};
  run.evaluate_on("unseen", std::vector{unseen}, [&](data_set const& all) {
    at::Tensor const scores = model->forward(all.first);
    return keel::batch_metrics{{"loss", torch::nn::functional::cross_entropy(scores, all.second)},
                               {"accuracy", scores.argmax(1).eq(all.second).to(at::kFloat).mean()}};
  });
  run.fit(order, [&](keel::row_numbers const& rows) {
    at::Tensor const index = at::tensor(at::ArrayRef<std::int64_t>(rows));
    return torch::nn::functional::cross_entropy(model->forward(train.first.index_select(0, index)), train.second.index_select(0, index));
  });

  auto const best = run.load_best();  // of the moving average, which the evaluations judged
  auto const guesses = keel::predict(*model, std::vector{unseen}, [&](data_set const& all) { return model->forward(all.first).argmax(1); });
  double const accuracy = guesses[0].eq(unseen.second).to(at::kFloat).mean().item<double>();
  std::printf("best: update %lld, accuracy %.4f; predicted with its weights: %.4f\n", static_cast<long long>(best.update), best.value, accuracy);
  return accuracy == best.value ? 0 : 1;
} catch (keel::error const& thrown) {
  std::fprintf(stderr, "%s\n", thrown.what());
  return 1;
}
