// What a keel step costs on a GPU beside the loop that one would write by hand. Blocks of updates, turn by turn in one process, each
// waited for at its end; medians. Prints one JSON row a line, and nothing where there is no GPU.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <keel/step/step.hpp>
#include <keel/optimizer/adam.hpp>
#include <string>
#include <vector>

#include "measure.hpp"

namespace {

struct plain : keel::recipe<> {};
struct guarded : keel::recipe<keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>> {};
struct in_bf16 : keel::recipe<keel::precision::bf16, keel::clip::global_norm<1.0>, keel::nonfinite::skip<10>> {};

torch::nn::Sequential make_model(std::int64_t width, int layers) {
  at::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::GELU());
  }
  model->to(at::kCUDA);
  return model;
}

/// `guards`: the hand-written loop clips, and looks at the norm before it updates, as a loop that skips NaN must.
template <class Recipe, class Optimizer>
void compare(std::string const& name, std::int64_t width, int layers, std::int64_t rows, bool guards) {
  constexpr int rounds = 15;
  constexpr int updates = 40;
  auto ours = make_model(width, layers);
  auto theirs = make_model(width, layers);
  Optimizer our_optimizer(ours->parameters(), 1e-3);
  torch::optim::AdamW their_optimizer(theirs->parameters(), 1e-3);
  keel::step<Recipe> step{ours, our_optimizer};
  auto const options = at::TensorOptions().device(at::kCUDA);
  at::Tensor const x = at::randn({rows, width}, options);
  at::Tensor const y = at::randn({rows, width}, options);
  c10::impl::VirtualGuardImpl const device(at::kCUDA);
  auto const keel_block = [&] {
    for (int i = 0; i < updates; ++i)
      step(x, [&](at::Tensor const& batch) { return at::mse_loss(ours->forward(batch), y); });
    device.getStream(at::Device(at::kCUDA, 0)).synchronize();
  };
  auto const hand_block = [&] {
    for (int i = 0; i < updates; ++i) {
      for (auto const& parameter : theirs->parameters()) parameter.mutable_grad() = at::Tensor();
      at::Tensor loss;
      {
        keel::autocast_scope const autocast(at::kCUDA, keel::config_of<Recipe>.precision.kind);
        loss = at::mse_loss(theirs->forward(x), y);
      }
      loss.backward();
      if (!guards || std::isfinite(torch::nn::utils::clip_grad_norm_(theirs->parameters(), 1.0))) their_optimizer.step();
    }
    device.getStream(at::Device(at::kCUDA, 0)).synchronize();
  };
  auto const [mine, peer] = keel_benchmark::compare(keel_block, hand_block, rounds, 3);
  keel_benchmark::print_row(name, mine / updates, peer / updates,
                            "an update, median of " + std::to_string(rounds) + " blocks of " + std::to_string(updates) + "; " +
                                std::to_string(layers) + " layers of " + std::to_string(width) + ", " + std::to_string(rows) +
                                " rows; peer: hand-written loop, " + (guards ? "clip_grad_norm_ and a look at it, " : "") +
                                "torch::optim::AdamW");
}

}  // namespace

int main() {
  if (!at::hasCUDA()) return 0;
  at::set_num_threads(1);
  compare<plain, torch::optim::AdamW>("device/plain_small", 128, 8, 64, false);
  compare<guarded, torch::optim::AdamW>("device/guarded_small_libtorch_adamw", 128, 8, 64, true);
  compare<guarded, keel::adamw>("device/guarded_small", 128, 8, 64, true);
  compare<plain, keel::adamw>("device/plain_large", 4096, 8, 4096, false);
  compare<guarded, keel::adamw>("device/guarded_large", 4096, 8, 4096, true);
  compare<in_bf16, keel::adamw>("device/bf16_large", 4096, 8, 4096, true);
}
