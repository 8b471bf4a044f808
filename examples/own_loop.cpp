// The loop is the program's own; keel makes one guarded update of it.
#include <keel/step/step.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>

struct guarded : keel::recipe<
    keel::accumulate<2>,
    keel::clip::global_norm<1.0>,
    keel::nonfinite::skip<5>,
    keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

int main() {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);

  keel::step<guarded> step{model, optimizer};
  for (int i = 0; i < 20; ++i) {
    at::Tensor batch = at::randn({16, 4});
    if (i == 7) batch[3][1] = NAN;   // bad data happens
    // [own_loop]
    keel::step_outcome const outcome = step(batch, [&](at::Tensor const& x) { return at::mse_loss(model(x), x.sum(1, true)); });
    if (auto const* done = outcome.updated()) {
      std::printf("loss %.4f  gradient norm %.3f\n", done->loss, done->gradient_norm);
    } else if (auto const* skipped = outcome.skipped()) {
      std::printf("skipped: %s\n", keel::to_string(skipped->why));
    }
    // [own_loop]
  }
  return step.skipped() == 1 ? 0 : 1;
}
