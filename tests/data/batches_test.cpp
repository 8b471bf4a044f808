// What a batch and a model may be: vectors of anything, Examples with any target, several loaders at a time, several models or tensors as one.
#include <torch/data.h>
#include <torch/script.h>

#include <keel/core/script_module.hpp>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct skipping : keel::recipe<keel::nonfinite::skip<5>> {};
struct halving : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};

/// A game of self-play: nothing that keel knows of.
struct game {
  std::vector<float> board;
  float result;
};
struct boxes {
  std::vector<std::array<float, 4>> all;
};

at::Tensor tensor_of(std::vector<game> const& games) {
  at::Tensor const x = at::empty({static_cast<std::int64_t>(games.size()), 6});
  for (std::size_t i = 0; i < games.size(); ++i)
    for (std::size_t j = 0; j < 6; ++j) x[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(j)] = games[i].board[j];
  return x;
}

struct rows_of : torch::data::datasets::Dataset<rows_of> {
  explicit rows_of(std::uint64_t rows) : count(rows) {}
  torch::data::Example<> get(std::size_t index) override {
    auto const batch = make_pair_batch(index, 1);
    return {batch.first[0], batch.second[0]};
  }
  torch::optional<std::size_t> size() const override { return count; }
  std::uint64_t count;
};

}  // namespace

TEST_CASE("a vector of anything is a batch whose rows are its elements, and a ladder cuts it") {
  using traits = keel::batch_traits<std::vector<game>>;
  std::vector<game> const games{{{1, 2, 3, 4, 5, 6}, 1}, {{6, 5, 4, 3, 2, 1}, -1}, {{0, 0, 0, 0, 0, 1}, 0}};
  CHECK(traits::rows(games) == 3);
  CHECK(traits::slice(games, 1, 3).size() == 2);
  static_assert(keel::sliceable_batch<std::vector<game>> && keel::sliceable_batch<std::vector<std::string>>);
  static_assert(keel::sliceable_batch<std::vector<torch::data::Example<>>>);

  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<halving> step{model, optimizer};
  int calls = 0;
  auto const outcome = step(games, [&](std::vector<game> const& some) {
    if (++calls == 1) throw std::bad_alloc();
    return model->forward(tensor_of(some)).square().mean();
  });
  CHECK(outcome.updated() != nullptr);
  CHECK(step.pieces() == 2);
  CHECK(calls == 3);
}

TEST_CASE("an Example counts its data, whatever its target is, and is cut where both can be") {
  using with_boxes = torch::data::Example<at::Tensor, boxes>;
  using with_list = torch::data::Example<at::Tensor, std::vector<game>>;
  using alone = torch::data::Example<at::Tensor, torch::data::example::NoTarget>;
  with_boxes const image{at::zeros({5, 3}), boxes{}};
  CHECK(keel::batch_traits<with_boxes>::rows(image) == 5);
  static_assert(keel::countable_batch<with_boxes> && !keel::sliceable_batch<with_boxes>);
  static_assert(keel::sliceable_batch<with_list> && keel::sliceable_batch<alone> && keel::sliceable_batch<torch::data::Example<>>);
  CHECK(keel::batch_traits<alone>::rows(alone(at::zeros({7, 3}))) == 7);

  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<skipping> step{model, optimizer};
  CHECK(step(with_boxes{at::zeros({5, 6}), boxes{}}, [&](with_boxes const& one) { return model->forward(one.data).square().mean(); })
            .updated() != nullptr);
}

TEST_CASE("a loader that stacks nothing, and several loaders at a time, train and resume") {
  struct saving : keel::recipe<keel::checkpoint::every<2_steps>> {};
  auto const train = [](std::filesystem::path const& directory, std::int64_t updates) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    auto first = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(rows_of(24), 4);
    auto second = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
        rows_of(40).map(torch::data::transforms::Stack<>()), 5);
    keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory, .updates = updates})};
    run.fit(keel::zipped_batches(*first, *second), [&](auto const& both) {
      auto const& [rows, stacked] = both;
      std::vector<at::Tensor> data;
      for (auto const& one : rows) data.push_back(one.data);
      return at::mse_loss(model->forward(at::stack(data)).mean(), model->forward(stacked.data).mean());
    });
    CHECK(run.cursor().epoch == (updates >= 6 ? 1 : 0));
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = train(directory / "whole", 9);
  train(directory / "cut", 5);
  CHECK(same_bits(whole, train(directory / "cut", 9)));
}

TEST_CASE("an encoder and a decoder under one optimizer, and an image that is trained, are one model with names") {
  auto const encoder = make_small();
  torch::nn::Linear decoder(1, 6);
  at::Tensor pixels = at::zeros({2, 6}).requires_grad_();
  keel::bundle model{{"encoder", encoder}, {"decoder", decoder}, {"pixels", pixels}};
  torch::optim::Adam optimizer(model.parameters(), 0.01);
  keel::step<skipping> step{model, optimizer};
  auto const before = pixels.detach().clone();
  step([&] { return (decoder->forward(encoder->forward(pixels)) - 1).square().mean(); });
  CHECK(!same_bits(before, pixels.detach()));
  CHECK(step.parameters().names.back() == "decoder.bias");
  CHECK(step.parameters().names.front() == "pixels");

  auto const words_of = [](auto const& call) {
    try {
      call();
    } catch (keel::error const& thrown) {
      return std::string(thrown.what());
    }
    return std::string();
  };
  CHECK(words_of([&] { keel::bundle({{"a", pixels}, {"a", encoder}}); }).find("appears twice") != std::string::npos);
  CHECK(words_of([&] { keel::bundle({{"a.b", pixels}}); }).find("without a dot") != std::string::npos);
  CHECK(words_of([&] { keel::bundle({{"a", pixels * 2}}); }).find("detach().requires_grad_()") != std::string::npos);
  // The error about an optimizer over two models has the way out.
  auto all = encoder->parameters();
  all.push_back(pixels);
  torch::optim::Adam over_both(all, 0.01);
  CHECK(words_of([&] { keel::step<skipping>{encoder, over_both}; }).find("keel::bundle model{{") != std::string::npos);
}

TEST_CASE("a TorchScript module trains, changes its mode and resumes") {
  struct saving : keel::recipe<keel::checkpoint::every<2_steps>> {};
  auto const train = [](std::filesystem::path const& directory, std::int64_t updates) {
    torch::jit::Module inner("inner");
    inner.register_parameter("weight", at::full({6, 1}, 0.1).requires_grad_(), false);
    inner.register_buffer("seen", at::zeros({}));
    inner.register_attribute("training", c10::BoolType::get(), true);
    inner.define("def forward(self, x):\n  if self.training:\n    self.seen.add_(1)\n  return torch.mm(x, self.weight)\n");
    torch::jit::Module net("net");
    net.register_module("inner", inner);
    net.define("def forward(self, x):\n  return torch.tanh(self.inner.forward(x))\n");
    auto const model = std::make_shared<keel::script_module>(net);
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory, .updates = updates})};
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 10; ++i) batches.push_back(make_pair_batch(i));
    run.fit(batches, [&](pair_batch const& one) { return at::mse_loss(net.forward({one.first}).toTensor(), one.second); });
    model->eval();
    CHECK(!inner.is_training());
    CHECK(model->named_parameters().front().key() == "inner.weight");
    CHECK(model->named_buffers()["inner.seen"].item<double>() == static_cast<double>(updates));
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = train(directory / "whole", 7);
  train(directory / "cut", 3);
  CHECK(same_bits(whole, train(directory / "cut", 7)));
}
