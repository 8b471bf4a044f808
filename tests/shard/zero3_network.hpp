// The model of the tests of shard::zero<3>: units, and layers that no unit has.
#pragma once

#include <ATen/Parallel.h>
#include <torch/nn/modules/dropout.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <keel/recompute/unit.hpp>

#include "../support.hpp"

namespace keel_test::zero3 {

template <class... Policies>
struct whole : keel::recipe<keel::shard::replicate, Policies...> {};
template <class... Policies>
struct cut2 : keel::recipe<keel::shard::zero<2>, Policies...> {};
template <class... Policies>
struct cut : keel::recipe<keel::shard::zero<3>, Policies...> {};

using skips = keel::nonfinite::skip<20>;
using clips = keel::clip::global_norm<0.05>;

struct layer : torch::nn::Module {
  torch::nn::Linear wide{nullptr}, back{nullptr};
  torch::nn::Dropout dropout{nullptr};
  layer(std::int64_t width, double drops) {
    wide = register_module("wide", torch::nn::Linear(width, 2 * width + 3));
    back = register_module("back", torch::nn::Linear(2 * width + 3, width));
    dropout = register_module("dropout", torch::nn::Dropout(drops));
  }
  at::Tensor forward(at::Tensor const& x) { return x + dropout(back(at::gelu(wide(x)))); }
};

/// Three units, and a first and a last layer that no unit has.
struct network : torch::nn::Module {
  torch::nn::Linear first{nullptr}, last{nullptr};
  std::vector<std::shared_ptr<layer>> layers;
  explicit network(double drops, at::ScalarType dtype = at::kFloat, bool freezes = false, std::int64_t width = 20) {
    at::manual_seed(4);
    first = register_module("first", torch::nn::Linear(7, width));
    for (int i = 0; i < 3; ++i) layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<layer>(width, drops)));
    last = register_module("last", torch::nn::Linear(width, 3));
    to(dtype);
    if (freezes) {
      for (at::Tensor& one : layers[1]->wide->parameters()) one.requires_grad_(false);
      for (at::Tensor& one : layers[0]->parameters()) one.requires_grad_(false);
    }
  }
  std::vector<at::Tensor> trained() const {
    std::vector<at::Tensor> all;
    for (at::Tensor const& one : parameters()) {
      if (one.requires_grad()) all.push_back(one);
    }
    return all;
  }
  /// The units of `path` in their order; all of them without one.
  at::Tensor loss(at::Tensor const& x, std::vector<std::size_t> const& path = {0, 1, 2}) {
    at::Tensor y = first(x).tanh();
    for (std::size_t const i : path) y = keel::unit(layers[i], y);
    return last(y).square().mean();
  }
};

inline at::Tensor rows_of(std::int64_t i, int rank, at::ScalarType dtype = at::kFloat) {
  std::int64_t const rows = 1 + (i + rank) % 3;
  at::Tensor const all = at::arange(rows * 7).view({rows, 7}) * 0.13 + static_cast<double>(i * 5 + rank * 3);
  return all.sin().to(dtype);
}

struct single_thread {
  int const before = at::get_num_threads();
  single_thread() { at::set_num_threads(1); }
  ~single_thread() { at::set_num_threads(before); }
};

}  // namespace keel_test::zero3
