// The run that kill_test.sh kills: small, with everything in it that a resume could forget.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdlib>
#include <keel/keel.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <thread>

namespace {

using namespace keel::literals;

struct recipe : keel::recipe<keel::accumulate<2>, keel::clip::global_norm<0.5>, keel::nonfinite::skip<4>, keel::determinism::seeded<3>,
                             keel::schedule::cosine<keel::schedule::warmup<10_steps>>,
                             keel::checkpoint::every<5_steps, keel::checkpoint::keep<2>>,
                             keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

struct net : torch::nn::Module {
  net()
      : first(register_module("first", torch::nn::Linear(16, 32))),
        drop(register_module("drop", torch::nn::Dropout(0.2))),
        second(register_module("second", torch::nn::Linear(32, 1))) {}
  at::Tensor forward(at::Tensor const& x) { return second(drop(at::relu(first(x)))); }
  torch::nn::Linear first;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};

}  // namespace

/// victim RUN_DIRECTORY UPDATES MICROSECONDS_A_MICRO_BATCH
int main(int count, char** words) {
  if (count != 4) return 2;
  auto const pause = std::chrono::microseconds(std::atoi(words[3]));
  keel::seed<recipe>();
  auto const model = std::make_shared<net>();
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::trainer<recipe> run{model, optimizer, {.run_directory = words[1], .updates = std::atoll(words[2]), .mode = keel::console_mode::off}};
  // Seven batches an epoch, so that windows of two cross epochs; drawn from the generator, as a user's might be.
  auto const batches = [](std::int64_t epoch) {
    return ranges::views::iota(0, 7) | ranges::views::transform([epoch](int i) { return at::randn({8, 16}) + 0.01 * static_cast<double>(epoch + i); });
  };
  auto const loss_of = [&](at::Tensor const& x) {
    std::this_thread::sleep_for(pause);
    at::Tensor const loss = at::mse_loss(model->forward(x), x.sum(1, true));
    if (run.updates() == 12 && run.skipped() == 0) return loss * NAN;
    return loss;
  };
  run.fit(batches, loss_of);
  return 0;
}
