// A transformer of two blocks that uses every door of the memory policies: units, keel::attention, and keel::lora.
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <keel/attention/attention.hpp>
#include <keel/lora/lora.hpp>
#include <keel/recompute/unit.hpp>

#include "support.hpp"

namespace keel_test {

struct block_module : torch::nn::Module {
  explicit block_module(std::int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        query_key_value(register_module("query_key_value", keel::lora(keel::lora_options(width, 3 * width).rank(2)))),
        wide(register_module("wide", keel::lora(keel::lora_options(width, 4 * width).rank(2)))),
        narrow(register_module("narrow", keel::lora(keel::lora_options(4 * width, width).rank(2)))) {}

  at::Tensor forward(at::Tensor const& x) {
    auto const parts =
        query_key_value(norm(x)).view({x.size(0), x.size(1), 3, 2, x.size(2) / 2}).permute({2, 0, 3, 1, 4}).unbind(0);
    at::Tensor const mixed = keel::attention(parts[0], parts[1], parts[2], {.causal = true});
    at::Tensor const y = x + mixed.transpose(1, 2).reshape(x.sizes());
    return y + at::dropout(narrow(at::gelu(wide(y))), 0.2, is_training());
  }

  torch::nn::LayerNorm norm;
  keel::lora query_key_value, wide, narrow;
};

struct transformer : torch::nn::Module {
  static constexpr std::int64_t vocabulary = 11;

  explicit transformer(std::int64_t width = 8) : tokens(register_module("tokens", torch::nn::Embedding(vocabulary, width))) {
    for (int i = 0; i < 2; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<block_module>(width)));
    head = register_module("head", torch::nn::Linear(width, vocabulary));
    to(device());
  }
  at::Tensor forward(at::Tensor const& ids) {
    at::Tensor x = tokens(ids);
    for (auto const& block : blocks) x = keel::unit([block](at::Tensor const& y) { return block->forward(y); }, x);
    return head(x);
  }

  torch::nn::Embedding tokens;
  std::vector<std::shared_ptr<block_module>> blocks;
  torch::nn::Linear head{nullptr};
};

inline std::shared_ptr<transformer> make_transformer(std::uint64_t seed = 1, std::int64_t width = 8) {
  keel::libtorch::seed_random(at::kCPU, seed);
  if (!device().is_cpu()) keel::libtorch::seed_random(device().type(), seed);
  return std::make_shared<transformer>(width);
}

/// [rows, tokens + 1] ids that depend on the seed alone.
inline at::Tensor some_ids(std::uint64_t seed, std::int64_t rows = 4, std::int64_t tokens = 6) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(transformer::vocabulary, {rows, tokens + 1}, generator).to(device());
}

inline auto next_token_loss(std::shared_ptr<transformer> const& model) {
  return [model](at::Tensor const& ids) {
    at::Tensor const logits = model->forward(ids.slice(1, 0, ids.size(1) - 1));
    return at::cross_entropy_loss(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  };
}

}  // namespace keel_test
