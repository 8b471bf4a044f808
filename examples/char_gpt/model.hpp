// A decoder-only transformer, pre-norm, with learned positions (Radford et al. 2019, "GPT-2", at a size for two cores).
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <cstdint>
#include <keel/attention/attention.hpp>
#include <keel/recompute/unit.hpp>
#include <keel/data/token_range.hpp>
#include <memory>

namespace char_gpt {

struct model_size {
  std::int64_t vocabulary;
  std::int64_t context = 64;  ///< tokens that the model looks back on
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t layers = 6;
  double dropout = 0.1;
};

/// `Linear`: torch::nn::Linear, or a layer that stands in its place, such as keel::lora.
template <class Linear>
struct block_of : torch::nn::Module {
  explicit block_of(model_size const& size)
      : heads(size.heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})))),
        query_key_value(register_module("query_key_value", Linear(size.width, 3 * size.width))),
        merge(register_module("merge", Linear(size.width, size.width))),
        widen(register_module("widen", Linear(size.width, 4 * size.width))),
        narrow(register_module("narrow", Linear(4 * size.width, size.width))),
        dropout(register_module("dropout", torch::nn::Dropout(size.dropout))) {}

  /// `x`: [batch, time, width].
  at::Tensor forward(at::Tensor x) {
    std::int64_t const batch = x.size(0);
    std::int64_t const time = x.size(1);
    std::int64_t const width = x.size(2);
    auto const parts = query_key_value(norm1(x)).view({batch, time, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    at::Tensor const mixed = keel::attention(parts[0], parts[1], parts[2], {.causal = true});
    x = x + dropout(merge(mixed.transpose(1, 2).reshape({batch, time, width})));
    return x + dropout(narrow(at::gelu(widen(norm2(x)))));
  }

  std::int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  Linear query_key_value, merge, widen, narrow;
  torch::nn::Dropout dropout;
};
using block_module = block_of<torch::nn::Linear>;

template <class Linear>
struct gpt_module_of : torch::nn::Module {
  explicit gpt_module_of(model_size const& of)
      : size(of),
        tokens(register_module("tokens", torch::nn::Embedding(of.vocabulary, of.width))),
        positions(register_module("positions", torch::nn::Embedding(of.context, of.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({of.width})))),
        head(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(of.width, of.vocabulary).bias(false)))),
        dropout(register_module("dropout", torch::nn::Dropout(of.dropout))) {
    for (std::int64_t i = 0; i < of.layers; ++i) blocks->push_back(std::make_shared<block_of<Linear>>(of));
    at::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      if (item.value().dim() < 2) continue;
      // The two projections that write to the residual stream start smaller, so that its variance does not grow with depth.
      bool const writes = item.key().find("merge") != std::string::npos || item.key().find("narrow") != std::string::npos;
      item.value().normal_(0.0, writes ? 0.02 / std::sqrt(2.0 * static_cast<double>(of.layers)) : 0.02);
    }
  }

  /// `ids`: int64 [batch, time], time at most the context. Returns logits [batch, time, vocabulary].
  at::Tensor forward(at::Tensor const& ids) {
    keel::require_token_range(ids, size.vocabulary);
    std::int64_t const time = ids.size(1);
    at::Tensor x = dropout(tokens(ids) + positions(at::arange(time, ids.options())));
    // Each block is a unit, which a recompute policy drops and computes again.
    for (auto const& one : *blocks) x = keel::unit(*one->template as<block_of<Linear>>(), x);
    return head(norm(x));
  }

  model_size size;
  torch::nn::Embedding tokens, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  torch::nn::Dropout dropout;
};

/// A module holder, as LibTorch's are.
template <class Linear>
struct gpt_of : torch::nn::ModuleHolder<gpt_module_of<Linear>> {
  using torch::nn::ModuleHolder<gpt_module_of<Linear>>::ModuleHolder;
  using Impl = gpt_module_of<Linear>;
};
using gpt_module = gpt_module_of<torch::nn::Linear>;
using gpt = gpt_of<torch::nn::Linear>;

}  // namespace char_gpt
