// What to ask before a long run, and the average of the weights after it.
// [before_a_run]
#include <keel/keel.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

struct careful : keel::recipe<
    keel::clip::zscore<4.0, keel::clip::at_most<5.0>>,     // a limit computed from recent norms
    keel::nonfinite::skip<10>,
    keel::spike::skip<keel::spike::zscore<6.0>>,           // skips an update whose loss or norm is far above the recent ones
    keel::schedule::one_cycle<>,
    keel::ema<0.99>> {};

int main() {
  at::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  keel::adamw optimizer(model->parameters(), 1e-2);
  keel::trainer<careful> run{model, optimizer, {.updates = 300, .console_every = 100}};

  std::vector<at::Tensor> batches;
  for (int i = 0; i < 20; ++i) batches.push_back(at::randn({64, 8}));
  auto const loss_of = [&](at::Tensor const& x) { return at::mse_loss(model->forward(x), x.sin().sum(1, true)); };

  // All three leave the run exactly as it was.
  keel::preflight_result const preflight = run.preflight(batches, loss_of);
  std::fputs(preflight.table().c_str(), stdout);
  keel::overfit_result const one_batch = run.overfit_one_batch(batches[0], loss_of);
  std::printf("one batch: loss %.4f, after %zu updates %.4f\n", one_batch.losses.front(), one_batch.losses.size(), one_batch.losses.back());
  keel::lr_range_result const range = run.lr_range_test(batches, loss_of);
  std::printf("learning rates: falls fastest at %.1e, lowest at %.1e%s\n", range.steepest, range.lowest, range.diverged ? ", then diverges" : "");

  run.fit(batches, loss_of);
  double const last = run.evaluate(batches, loss_of);
  auto const averaged = run.averaged();                    // the model has the averaged weights while this object lives
  double const average = run.evaluate(batches, loss_of);
  std::printf("loss %.4f, with averaged weights %.4f\n", last, average);
  return preflight.passed() && one_batch.learned() && average < 0.5 ? 0 : 1;
}
// [before_a_run]
