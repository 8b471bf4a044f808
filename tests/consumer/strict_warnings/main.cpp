// A trainer that uses most of keel, in a project that takes warnings for errors. keel comes first, for clang.
#include <keel/keel.hpp>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <filesystem>
#include <vector>

using namespace keel::literals;

struct recipe : keel::recipe<
    keel::precision::bf16,
    keel::accumulate<2>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::rollback<3>,
    keel::spike::skip<keel::spike::zscore<8.0>>,
    keel::schedule::cosine<keel::schedule::warmup<4_steps>>,
    keel::checkpoint::every<10_steps, keel::checkpoint::keep<2>>,
    keel::recompute::non_reentrant,
    keel::ema<0.9>,
    keel::evaluation::every<10_steps>,
    keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>,
    keel::determinism::seeded<1>> {};
template struct keel::checked<recipe>;

int main() {
  keel::seed<recipe>();
  torch::nn::Linear first(8, 16);
  torch::nn::Linear last(16, 1);
  torch::nn::Sequential model(first, torch::nn::Tanh(), last);
  keel::adamw optimizer(model->parameters(), 1e-2);
  std::filesystem::remove_all("run");
  keel::trainer<recipe> run{model, optimizer, {.run_directory = "run", .updates = 20}};
  int saved = 0;
  run.on([&](keel::event::checkpoint_saved const&) { ++saved; });

  std::vector<at::Tensor> const batches(8, at::ones({4, 8}));
  auto const loss_of = [&](at::Tensor const& x) {
    auto const hidden = keel::unit([&](at::Tensor const& rows) { return at::tanh(first->forward(rows)); }, x);
    return last->forward(hidden).square().mean();
  };
  run.evaluate_on(batches, loss_of);
  keel::outcome const result = run.fit([&](std::int64_t) { return batches; }, loss_of);
  std::printf("%d updates, %d checkpoints\n", static_cast<int>(run.updates()), saved);
  return result.is<keel::result::finished>() && run.updates() == 20 && saved > 0 ? 0 : 1;
}
