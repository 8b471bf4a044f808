// An update with global clipping, finite check and per-parameter norms: keel's two passes over memory beside LibTorch's
// clip_grad_norm_ and AdamW, and beside its fused AdamW where it has one, turn by turn in one process, medians. Prints one
// JSON row a line.
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <torch/optim/adamw.h>
#include <torch/version.h>
// After what it needs and does not include.
#include <torch/nn/utils/clip_grad.h>

#define KEEL_BENCHMARK_FUSED (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6))
#if KEEL_BENCHMARK_FUSED
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <keel/gradients/gradient_norm.hpp>
#include <keel/optimizer/adam.hpp>
#include <string>
#include <string_view>
#include <tuple>
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

#if defined(__x86_64__) && defined(__GNUC__)
#define KEEL_BENCHMARK_VECTORS __attribute__((target("avx2,fma"), optimize("O3,fast-math")))
#else
#define KEEL_BENCHMARK_VECTORS
#endif

KEEL_BENCHMARK_VECTORS float read_once(float const* a, std::int64_t count) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i];
  return sum;
}
KEEL_BENCHMARK_VECTORS void read_and_write(float* __restrict p, float* __restrict m, float* __restrict v,
                                           float const* __restrict g, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    p[i] += 1e-9F * g[i];
    m[i] += 1e-9F * g[i];
    v[i] += 1e-9F * g[i];
  }
}

/// The bytes of an update with exact clipping, moved and hardly worked on, in the same working set: the gradients once, then
/// the gradients, parameters and both moments, of which the last three are written. 32 bytes a parameter.
class moved_bytes {
 public:
  explicit moved_bytes(std::int64_t elements) : elements_(elements) {
    for (at::Tensor& one : arrays_) one = at::zeros({elements});
  }
  void operator()() {
    constexpr std::int64_t piece = 1 << 15;
    auto const at = [this](int array, std::int64_t from) { return arrays_[array].data_ptr<float>() + from; };
    std::int64_t const pieces = (elements_ + piece - 1) / piece;
    at::parallel_for(0, pieces, 1, [&](std::int64_t from, std::int64_t to) {
      float sum = 0.0F;
      for (std::int64_t i = from; i < to; ++i) sum += read_once(at(3, i * piece), std::min(piece, elements_ - i * piece));
      if (sum != 0.0F) std::abort();
    });
    at::parallel_for(0, pieces, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i)
        read_and_write(at(0, i * piece), at(1, i * piece), at(2, i * piece), at(3, i * piece),
                       std::min(piece, elements_ - i * piece));
    });
  }

 private:
  std::int64_t elements_;
  at::Tensor arrays_[4];
};

std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> const& parameters) {
  std::vector<at::Tensor> gradients;
  for (auto const& one : parameters) gradients.push_back(one.grad());
  return gradients;
}

torch::optim::AdamWOptions options() { return torch::optim::AdamWOptions(1e-4).weight_decay(0.1); }

class keel_update {
 public:
  keel_update(std::int64_t width, int blocks)
      : parameters_(transformer(width, blocks)), gradients_(gradients_of(parameters_)), optimizer_(parameters_, options()) {}

  void operator()() {
    auto const measure = keel::measure_gradients(gradients_);
    if (measure.first_nonfinite >= 0) std::abort();
    norms_ += std::sqrt(measure.squares.front());
    optimizer_.prepare();
    optimizer_.update_with(std::min(1.0, 1.0 / (measure.norm + 1e-6)));
  }

  std::int64_t elements() const { return count(parameters_); }
  std::string describe(int rounds, int threads) const {
    return "median of " + std::to_string(rounds) + ", " + std::to_string(elements()) + " parameters in " +
           std::to_string(parameters_.size()) + " tensors, " + std::to_string(threads) + " threads";
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
  keel::adamw optimizer_;
  double norms_ = 0.0;
};

class stock_update {
 public:
  stock_update(std::int64_t width, int blocks) : parameters_(transformer(width, blocks)), optimizer_(parameters_, options()) {}

  void operator()() {
    torch::nn::utils::clip_grad_norm_(parameters_, 1.0);
    optimizer_.step();
  }

 private:
  std::vector<at::Tensor> parameters_;
  torch::optim::AdamW optimizer_;
};

std::string label(std::string const& name, int threads) {
  return threads == 1 ? name : name + "/" + std::to_string(threads) + "_threads";
}

void compare_with_stock(std::string const& name, std::int64_t width, int blocks, int threads, int rounds) {
  at::set_num_threads(threads);
  keel_update ours(width, blocks);
  stock_update theirs(width, blocks);
  auto const [mine, peer] = keel_benchmark::compare(ours, theirs, rounds, 3);
  std::string const detail = ours.describe(rounds, threads);
  keel_benchmark::print_row("update/" + label(name, threads), mine, peer,
                            detail + "; peer: clip_grad_norm_ and torch::optim::AdamW");
}

void compare_with_memory(std::string const& name, std::int64_t width, int blocks, int threads, int rounds) {
  at::set_num_threads(threads);
  keel_update ours(width, blocks);
  moved_bytes theirs(ours.elements());
  auto const [mine, peer] = keel_benchmark::compare(ours, theirs, rounds, 3);
  keel_benchmark::print_row("update_limit/" + label(name, threads), mine, peer,
                            ours.describe(rounds, threads) +
                                "; peer: the same 32 bytes a parameter read and written in arrays of the same size");
}

#if KEEL_BENCHMARK_FUSED
/// What LibTorch's own kernels can do at best: the clip is folded into the update, and nothing is read back on the way.
class fused_update {
 public:
  fused_update(std::int64_t width, int blocks)
      : parameters_(transformer(width, blocks)), gradients_(gradients_of(parameters_)), found_inf_(at::zeros({})) {
    at::NoGradGuard no_grad;
    for (auto const& one : parameters_) {
      averages_.push_back(at::zeros_like(one));
      squares_.push_back(at::zeros_like(one));
      steps_.push_back(at::zeros({}));
    }
  }

  void operator()() {
    at::NoGradGuard no_grad;
    at::Tensor const norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients_)));
    // One divided by the clip coefficient min(1, 1 / (norm + 1e-6)).
    at::Tensor const scale = norm.add(1e-6).clamp_min(1.0);
    at::_foreach_add_(steps_, 1);
    auto const with = options();
    at::_fused_adamw_(parameters_, gradients_, averages_, squares_, {}, steps_, with.lr(), std::get<0>(with.betas()),
                      std::get<1>(with.betas()), with.weight_decay(), with.eps(), false, false, scale, found_inf_);
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> squares_;
  std::vector<at::Tensor> steps_;
  at::Tensor found_inf_;
};

void compare_with_fused(std::string const& name, std::int64_t width, int blocks, int threads, int rounds) {
  at::set_num_threads(threads);
  keel_update ours(width, blocks);
  fused_update theirs(width, blocks);
  auto const [mine, peer] = keel_benchmark::compare(ours, theirs, rounds, 3);
  keel_benchmark::print_row("update_fused/" + label(name, threads), mine, peer,
                            ours.describe(rounds, threads) + "; peer: _foreach_norm and _fused_adamw_ with grad_scale");
}
#endif

}  // namespace

int main() {
#if !KEEL_BENCHMARK_FUSED
  std::fputs("There are no rows update_fused: LibTorch " TORCH_VERSION " has no fused AdamW on the CPU, as 2.6 has.\n", stderr);
#endif
  for (int threads : {1, 2}) {
    compare_with_stock("1M", 128, 5, threads, 101);
    compare_with_stock("10M", 384, 6, threads, 31);
    compare_with_stock("50M", 768, 7, threads, 11);
    compare_with_memory("1M", 128, 5, threads, 301);
    compare_with_memory("10M", 384, 6, threads, 51);
    compare_with_memory("50M", 768, 7, threads, 15);
#if KEEL_BENCHMARK_FUSED
    compare_with_fused("1M", 128, 5, threads, 101);
    compare_with_fused("10M", 384, 6, threads, 31);
    compare_with_fused("50M", 768, 7, threads, 11);
#endif
  }
}
