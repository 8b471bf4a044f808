// An update with global clipping, finite check and per-parameter norms: keel's two passes over memory beside LibTorch's
// clip_grad_norm_ and AdamW, turn by turn in one process, medians. Prints one JSON row a line.
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <torch/optim/adamw.h>
// After what it needs and does not include.
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <keel/step/gradient_norm.hpp>
#include <keel/update/adam.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "measure.hpp"

namespace {

using keel_benchmark::median;
using keel_benchmark::milliseconds;

/// The parameters of a transformer's blocks of the given width: matrices, biases and norms.
std::vector<at::Tensor> transformer(std::int64_t width, int blocks) {
  std::vector<at::Tensor> all;
  auto const add = [&](at::IntArrayRef shape) {
    all.push_back(at::randn(shape).mul_(0.02).requires_grad_(true));
    all.back().mutable_grad() = at::randn(shape).mul_(1e-3);
  };
  for (int block = 0; block < blocks; ++block) {
    for (auto const& shape :
         {std::vector<std::int64_t>{3 * width, width}, {width, width}, {4 * width, width}, {width, 4 * width}}) {
      add(shape);
      add({shape[0]});
    }
    for (int norm = 0; norm < 4; ++norm) add({width});
  }
  return all;
}

std::int64_t count(std::vector<at::Tensor> const& parameters) {
  std::int64_t sum = 0;
  for (auto const& one : parameters) sum += one.numel();
  return sum;
}

/// Milliseconds that this machine takes to move `bytes`, by a = a + s * b over arrays that no cache holds: two reads and a
/// write.
double triad_milliseconds(double bytes) {
  std::int64_t const elements = 32 << 20;
  at::Tensor a = at::zeros({elements}), b = at::ones({elements});
  std::vector<double> times;
  for (int round = 0; round < 15; ++round) {
    times.push_back(milliseconds([&] {
      at::parallel_for(0, elements, 1 << 15, [&](std::int64_t from, std::int64_t to) {
        keel::detail::sgd_coefficients const triad{1.0F, 0.0F, 0.0F, 1.0F, 0.5F, false};
        keel::detail::sgd(a.data_ptr<float>() + from, b.data_ptr<float>() + from, nullptr, false, to - from, triad);
      });
    }));
  }
  double const moved = 12.0 * static_cast<double>(elements);
  return median(times) * bytes / moved;
}

void compare(std::string const& name, std::int64_t width, int blocks, int threads, int rounds) {
  at::set_num_threads(threads);
  auto ours = transformer(width, blocks);
  auto theirs = transformer(width, blocks);
  auto const options = torch::optim::AdamWOptions(1e-4).weight_decay(0.1);
  keel::adamw our_optimizer(ours, options);
  torch::optim::AdamW their_optimizer(theirs, options);
  std::vector<at::Tensor> gradients;
  for (auto const& one : ours) gradients.push_back(one.grad());
  double norms = 0.0;
  auto const keel_update = [&] {
    auto const measure = keel::measure_gradients(gradients);
    if (measure.first_nonfinite >= 0) std::abort();
    norms += std::sqrt(measure.squares.front());
    our_optimizer.prepare();
    our_optimizer.update_with(std::min(1.0, 1.0 / (measure.norm + 1e-6)));
  };
  auto const stock_update = [&] {
    torch::nn::utils::clip_grad_norm_(theirs, 1.0);
    their_optimizer.step();
  };
  auto const [mine, peer] = keel_benchmark::compare(keel_update, stock_update, rounds, 3);
  std::string const detail = "median of " + std::to_string(rounds) + ", " + std::to_string(count(ours)) + " parameters in " +
                             std::to_string(ours.size()) + " tensors, " + std::to_string(threads) + " threads";
  std::string const label = threads == 1 ? name : name + "/" + std::to_string(threads) + "_threads";
  keel_benchmark::print_row("update/" + label, mine, peer, detail + "; peer: clip_grad_norm_ and torch::optim::AdamW");
  double const limit = triad_milliseconds(32.0 * static_cast<double>(count(ours)));
  keel_benchmark::print_row("update_limit/" + label, mine, limit,
                            detail + "; peer: moving 32 bytes a parameter at this machine's triad bandwidth");
}

}  // namespace

int main() {
  for (int threads : {1, 2}) {
    compare("1M", 128, 5, threads, 101);
    compare("10M", 384, 6, threads, 31);
    compare("50M", 768, 7, threads, 11);
  }
}
