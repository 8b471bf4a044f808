// A small GAN as one rank has it, and the recipes of its parts.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include "../support.hpp"

namespace keel_test {

template <class Shard>
struct part_of : keel::recipe<Shard, keel::nonfinite::skip<20>> {};
template <class Shard>
struct clipped_two_of : keel::recipe<Shard, keel::nonfinite::skip<20>, keel::accumulate<2>, keel::clip::global_norm<0.5>> {};
using replicated = part_of<keel::shard::replicate>;
using in_shares = part_of<keel::shard::zero<1>>;
using replicated_two = clipped_two_of<keel::shard::replicate>;
using two_in_shares = clipped_two_of<keel::shard::zero<1>>;

using namespace keel::literals;

/// Recipes of runs.
struct unsaved : keel::recipe<keel::shard::replicate> {};
struct saved : keel::recipe<keel::shard::replicate, keel::checkpoint::every<3_steps, keel::checkpoint::synchronous>,
                            keel::evaluation::every<2_steps>, keel::determinism::seeded<3>> {};
struct at_the_end : keel::recipe<keel::shard::replicate, keel::checkpoint::every<1000_steps, keel::checkpoint::synchronous>> {};

inline constexpr std::int64_t rows = 24;

/// Row i of the data, the same on all ranks.
inline at::Tensor rows_of(keel::row_numbers const& numbers) {
  std::vector<at::Tensor> all;
  for (std::int64_t const one : numbers)
    all.push_back(make_pair_batch(static_cast<std::uint64_t>(one), 1).first.slice(1, 0, 2).contiguous() + 2);
  return at::cat(all);
}

/// A GAN as one rank has it.
struct gan {
  torch::nn::Sequential generator{nullptr}, discriminator{nullptr};
  std::unique_ptr<keel::adamw> of_generator, of_discriminator;
  keel::shuffled_batches batches;
  explicit gan(keel::world_of_ranks const& world, bool plain = false)
      : batches({.rows = rows, .batch = 12 / world.size(), .seed = 5, .rank = world.rank(), .ranks = world.size()}) {
    at::manual_seed(1);
    generator = torch::nn::Sequential(torch::nn::Linear(4, 6));
    discriminator = torch::nn::Sequential(torch::nn::Linear(2, 6));
    if (!plain) {
      generator->push_back(torch::nn::BatchNorm1d(6));
      discriminator->push_back(torch::nn::BatchNorm1d(6));
      discriminator->push_back(torch::nn::Dropout(0.2));
    }
    for (auto model : {generator, discriminator}) model->push_back(torch::nn::Tanh());
    generator->push_back(torch::nn::Linear(6, 2));
    discriminator->push_back(torch::nn::Linear(6, 1));
    of_generator = std::make_unique<keel::adamw>(generator->parameters(), 0.01);
    of_discriminator = std::make_unique<keel::adamw>(discriminator->parameters(), 0.02);
  }
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all;
    for (auto const& model : {generator, discriminator}) {
      for (at::Tensor const& one : copies_of(model->parameters())) all.push_back(one);
      for (at::Tensor const& one : copies_of(model->buffers())) all.push_back(one);
    }
    return all;
  }
  at::Tensor judged(at::Tensor const& x, double target) {
    at::Tensor const out = discriminator->forward(x);
    return at::binary_cross_entropy_with_logits(out, at::full_like(out, target));
  }
  auto discriminator_loss(at::Tensor const& noise) {
    return [this, noise](at::Tensor const& real) {
      return judged(real, 1) + judged(generator->forward(noise.slice(0, 0, real.size(0))).detach(), 0);
    };
  }
};

inline bool has(std::string const& words, std::string const& part) {
  UNSCOPED_INFO(words);
  return words.find(part) != std::string::npos;
}

}  // namespace keel_test
