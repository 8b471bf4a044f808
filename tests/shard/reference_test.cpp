// What ranks train is what one process trains in float64 by a loop of LibTorch alone: at each stage of ZeRO, with and without recompute,
// accumulation, a mask as dropout has one, and several parameter groups.
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <keel/collective/in_process.hpp>
#include <keel/recompute/unit.hpp>

#include "../support.hpp"

using namespace keel_test;

namespace {

constexpr int updates = 4;
constexpr std::int64_t width = 20;

struct layer : torch::nn::Module {
  torch::nn::Linear wide{register_module("wide", torch::nn::Linear(width, 3 * width))};
  torch::nn::Linear narrow{register_module("narrow", torch::nn::Linear(3 * width, width))};
  at::Tensor forward(at::Tensor const& x, at::Tensor const& mask) { return x + narrow(at::gelu(wide(x)) * mask); }
};

struct network : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(5, width))};
  std::vector<std::shared_ptr<layer>> layers;
  torch::nn::Linear last{register_module("last", torch::nn::Linear(width, 2))};
  explicit network(at::ScalarType dtype) {
    at::manual_seed(11);
    for (int i = 0; i < 3; ++i) layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<layer>()));
    // Drawn in float32 for both.
    for (at::Tensor& one : parameters()) one.data().copy_(at::randn_like(one, at::kFloat) * 0.2);
    to(dtype);
  }
  at::Tensor loss(at::Tensor const& x, bool has_masks) {
    at::Tensor y = first(x).tanh();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      at::Tensor const drawn = at::arange(x.size(0) * 3 * width, y.options()).view({x.size(0), 3 * width});
      at::Tensor const mask = has_masks ? (drawn.mul(static_cast<double>(2 * i + 3)).remainder(7) > 1).to(y.scalar_type()) * 1.25 : at::ones_like(drawn);
      y = keel::unit(layers[i], [one = layers[i], mask](at::Tensor const& z) { return one->forward(z, mask); }, y);
    }
    return last(y).square().mean();
  }
};

at::Tensor rows_of(std::int64_t micro_batch, int rank, at::ScalarType dtype) {
  std::int64_t const rows = 1 + (2 * micro_batch + rank) % 4;
  return (at::arange(rows * 5, at::kDouble).view({rows, 5}) * 0.17 + static_cast<double>(3 * micro_batch + rank)).sin().to(dtype);
}

std::vector<torch::optim::OptimizerParamGroup> groups_of(network const& model, bool is_split) {
  auto const options = [](double rate) { return torch::optim::AdamWOptions(rate).eps(1e-3).weight_decay(0.1); };
  auto const all = model.parameters();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  auto const middle = all.begin() + (is_split ? 5 : static_cast<std::ptrdiff_t>(all.size()));
  groups.emplace_back(std::vector<at::Tensor>(all.begin(), middle), std::make_unique<torch::optim::AdamWOptions>(options(0.01)));
  if (is_split)
    groups.emplace_back(std::vector<at::Tensor>(middle, all.end()), std::make_unique<torch::optim::AdamWOptions>(options(0.002)));
  return groups;
}

std::vector<at::Tensor> train_reference(int ranks, int accumulate, bool has_masks, bool is_split) {
  network model(at::kDouble);
  torch::optim::AdamW optimizer(groups_of(model, is_split), torch::optim::AdamWOptions(0.01));
  for (int update = 0; update < updates; ++update) {
    optimizer.zero_grad();
    at::Tensor sum = at::zeros({}, at::kDouble);
    double rows = 0.0;
    for (int i = 0; i < accumulate; ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        at::Tensor const x = rows_of(update * accumulate + i, rank, at::kDouble);
        sum = sum + model.loss(x, has_masks) * static_cast<double>(x.size(0));
        rows += static_cast<double>(x.size(0));
      }
    }
    (sum / rows).backward();
    torch::nn::utils::clip_grad_norm_(model.parameters(), 0.3);
    optimizer.step();
  }
  return copies_of(model.parameters());
}

template <class Shard, class Recompute, int Accumulate>
struct recipe : keel::recipe<Shard, Recompute, keel::accumulate<Accumulate>, keel::clip::global_norm<0.3>> {
  static constexpr std::int64_t micro_batches = Accumulate;
};

/// Largest difference to the reference on any rank.
template <class Recipe>
double train(int ranks, bool has_masks, bool is_split, std::vector<at::Tensor> const& reference) {
  std::vector<double> differences(static_cast<std::size_t>(ranks), 0.0);
  keel::run_in_process(ranks, [&](keel::world_of_ranks const& world) {
    network model(at::kFloat);
    torch::optim::AdamW optimizer(groups_of(model, is_split), torch::optim::AdamWOptions(0.01));
    keel::step<Recipe> step{model, optimizer, world};
    std::int64_t const micro_batches = updates * Recipe::micro_batches;
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      at::Tensor const x = rows_of(i, world.rank(), at::kFloat);
      step([&] { return keel::weighted_loss{model.loss(x, has_masks), static_cast<double>(x.size(0))}; });
    }
    CHECK(step.updates() == updates);
    auto const everything = step.gather_parameters();
    auto const all = copies_of(model.parameters());
    for (std::size_t i = 0; i < all.size(); ++i) {
      double const difference = (all[i].to(at::kDouble) - reference[i]).abs().max().template item<double>();
      differences[static_cast<std::size_t>(world.rank())] = std::max(differences[static_cast<std::size_t>(world.rank())], difference);
    }
  });
  return *std::max_element(differences.begin(), differences.end());
}

template <class Recompute, int Accumulate, class... Shards>
void compare() {
  for (int const ranks : {1, 2, 3, 4}) {
    for (bool const has_masks : {false, true}) {
      for (bool const is_split : {false, true}) {
        INFO(ranks << " ranks, " << Accumulate << " micro-batches" << (has_masks ? ", masks" : "") << (is_split ? ", two groups" : ""));
        auto const reference = train_reference(ranks, Accumulate, has_masks, is_split);
        std::vector<double> const differences{train<recipe<Shards, Recompute, Accumulate>>(ranks, has_masks, is_split, reference)...};
        for (std::size_t stage = 0; stage < differences.size(); ++stage) {
          INFO("stage " << stage << ": " << differences[stage]);
          CHECK(differences[stage] < 1e-5);
        }
      }
    }
  }
}

template <class Recompute, int Accumulate>
void compare_stages() {
  compare<Recompute, Accumulate, keel::shard::replicate, keel::shard::zero<1>, keel::shard::zero<2>, keel::shard::zero<3>>();
}

}  // namespace

TEST_CASE("each stage of ZeRO on one to four ranks trains within 1e-5 what one process trains in float64") {
  int const threads = at::get_num_threads();
  at::set_num_threads(1);
  compare_stages<keel::recompute::none, 1>();
  compare_stages<keel::recompute::none, 3>();
  compare_stages<keel::recompute::reentrant, 1>();
  compare_stages<keel::recompute::reentrant, 3>();
  at::set_num_threads(threads);
}
