// What a keel step costs beside the loop that one would write by hand: both in one process, turn by turn, medians. Prints a JSON
// array of rows to standard output.
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <keel/step/step.hpp>
#include <string>
#include <vector>

namespace {

struct plain : keel::recipe<> {};
struct guarded : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>> {};

torch::nn::Sequential make_model() {
  at::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(256, 512), torch::nn::GELU(), torch::nn::Linear(512, 512), torch::nn::GELU(),
                               torch::nn::Linear(512, 64));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Run>
double milliseconds(Run&& run) {
  auto const start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// `clip`: the hand-written loop clips with LibTorch's own clip_grad_norm_.
template <class Recipe>
void compare(char const* name, bool clip, bool last) {
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
  std::vector<double> our_times;
  std::vector<double> their_times;
  for (int round = 0; round < rounds + 20; ++round) {
    double const a = milliseconds(keel_step);
    double const b = milliseconds(hand_step);
    if (round < 20) continue;
    our_times.push_back(a);
    their_times.push_back(b);
  }
  double const mine = median(our_times);
  double const peer = median(their_times);
  std::printf("  {\"name\": \"%s\", \"ours\": %.4f, \"peer\": %.4f, \"ratio\": %.3f, \"unit\": \"ms\", \"detail\": \"median of %d, %d threads; peer: %s\"}%s\n",
              name, mine, peer, peer / mine, rounds, at::get_num_threads(),
              clip ? "hand-written loop, clip_grad_norm_, torch::optim::AdamW" : "hand-written loop, torch::optim::AdamW", last ? "" : ",");
}

}  // namespace

int main() {
  at::set_num_threads(1);
  std::puts("[");
  compare<plain>("step/plain", false, false);
  compare<guarded>("step/guarded", true, true);
  std::puts("]");
}
