// What a keel step costs beside the loop that one would write by hand: both in one process, turn by turn, medians. Prints one JSON row
// a line.
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <keel/step/step.hpp>
#include <string>
#include <vector>

#include "measure.hpp"

namespace {

struct plain : keel::recipe<> {};
struct guarded : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>> {};

torch::nn::Sequential make_model() {
  at::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(256, 512), torch::nn::GELU(), torch::nn::Linear(512, 512), torch::nn::GELU(),
                               torch::nn::Linear(512, 64));
}

/// `clip`: the hand-written loop clips with LibTorch's own clip_grad_norm_.
template <class Recipe>
void compare(char const* name, bool clip) {
  constexpr int rounds = 300;
  auto ours = make_model();
  auto theirs = make_model();
  torch::optim::AdamW our_optimizer(ours->parameters(), 1e-3);
  torch::optim::AdamW their_optimizer(theirs->parameters(), 1e-3);
  keel::step<Recipe> step{ours, our_optimizer};
  at::Tensor const x = at::randn({64, 256});
  at::Tensor const y = at::randn({64, 64});
  auto const keel_step = [&] { step(x, [&](at::Tensor const& batch) { return at::mse_loss(ours->forward(batch), y); }); };
  auto const hand_step = [&] {
    for (auto const& parameter : theirs->parameters()) parameter.mutable_grad() = at::Tensor();
    at::Tensor const loss = at::mse_loss(theirs->forward(x), y);
    loss.backward();
    if (clip) torch::nn::utils::clip_grad_norm_(theirs->parameters(), 1.0);
    their_optimizer.step();
  };
  auto const [mine, peer] = keel_benchmark::compare(keel_step, hand_step, rounds, 20);
  keel_benchmark::print_row(name, mine, peer,
                            "median of " + std::to_string(rounds) + ", " + std::to_string(at::get_num_threads()) +
                                " threads; peer: hand-written loop, " + (clip ? "clip_grad_norm_, " : "") + "torch::optim::AdamW");
}

}  // namespace

int main() {
  at::set_num_threads(1);
  compare<plain>("step/plain", false);
  compare<guarded>("step/guarded", true);
}
