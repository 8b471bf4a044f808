// Backward passes of the program's own between open() and close().
#include <cmath>

#include <torch/csrc/autograd/autograd.h>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct skipping : keel::recipe<keel::nonfinite::skip<5>> {};
struct of_two : keel::recipe<keel::accumulate<2>, keel::nonfinite::skip<5>> {};
struct sum_of_two : keel::recipe<keel::accumulate<2, keel::sum>> {};
struct saving : keel::recipe<keel::checkpoint::every<2_steps>, keel::nonfinite::skip<5>> {};

std::pair<at::Tensor, at::Tensor> two_losses(std::shared_ptr<small_module> const& model, std::uint64_t seed) {
  auto const batch = make_pair_batch(seed);
  return {at::mse_loss(model->forward(batch.first), batch.second), model->forward(batch.first).abs().mean()};
}

template <class Recipe>
void compare(std::uint64_t micro_batches, double divisor) {
  auto const mine = make_small();
  auto const theirs = make_small();
  torch::optim::AdamW my_optimizer(mine->parameters(), 0.01), their_optimizer(theirs->parameters(), 0.01);
  keel::step<Recipe> step{mine, my_optimizer};
  for (std::uint64_t i = 0; i < 100; ++i) {
    their_optimizer.zero_grad();
    for (std::uint64_t j = 0; j < micro_batches; ++j) {
      auto micro_batch = step.open();
      auto const [a, b] = two_losses(mine, i * micro_batches + j);
      a.backward();
      b.backward();
      auto const outcome = micro_batch.close(a + b);
      auto const [c, d] = two_losses(theirs, i * micro_batches + j);
      c.backward();
      d.backward();
      REQUIRE((outcome.updated() != nullptr) == (j + 1 == micro_batches));
      if (outcome.updated() && micro_batches == 1) REQUIRE(outcome.updated()->loss == (c + d).item<double>());
    }
    for (auto const& one : theirs->parameters()) one.mutable_grad().mul_(1.0 / divisor);
    their_optimizer.step();
  }
  CHECK(same_bits(mine->parameters(), theirs->parameters()));
}

}  // namespace

TEST_CASE("backward passes of the program's own have the bits of a loop by hand over 100 updates") {
  compare<skipping>(1, 1.0);
  compare<of_two>(2, 2.0);
  compare<sum_of_two>(2, 1.0);
}

TEST_CASE("a penalty on gradients trains as by hand, in a loss function and with backward passes of the program's own") {
  auto const penalised = [](std::shared_ptr<small_module> const& model, std::uint64_t seed) {
    at::Tensor const x = make_pair_batch(seed).first.detach().requires_grad_();
    at::Tensor const out = model->forward(x);
    at::Tensor const gradient = torch::autograd::grad({out.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return out.mean() + 10 * (gradient.norm(2, 1) - 1).square().mean();
  };
  auto const one = make_small(), two = make_small(), theirs = make_small();
  torch::optim::AdamW first(one->parameters(), 0.01), second(two->parameters(), 0.01), third(theirs->parameters(), 0.01);
  keel::step<skipping> step{one, first}, own{two, second};
  for (std::uint64_t i = 0; i < 30; ++i) {
    step([&] { return penalised(one, i); });
    auto micro_batch = own.open();
    at::Tensor const loss = penalised(two, i);
    loss.backward();
    micro_batch.close(loss);
    third.zero_grad();
    penalised(theirs, i).backward();
    third.step();
  }
  CHECK(same_bits(one->parameters(), theirs->parameters()));
  CHECK(same_bits(two->parameters(), theirs->parameters()));
}

TEST_CASE("what is not closed is dropped: an exception or a return in between leaves everything as it was") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::step<of_two> step{model, optimizer};
  auto const take = [&](std::uint64_t seed) {
    auto micro_batch = step.open();
    auto const [a, b] = two_losses(model, seed);
    a.backward();
    b.backward();
    return micro_batch.close(keel::losses{{"a", a}, {"b", b}});
  };
  take(0), take(1);
  auto const before = copies_of(model->parameters());
  take(2);
  {
    auto micro_batch = step.open();
    two_losses(model, 3).first.backward();
    CHECK_THROWS_AS(step.open(), keel::error);
  }
  CHECK(step.at_boundary());
  try {
    auto micro_batch = step.open();
    two_losses(model, 4).first.backward();
    throw std::runtime_error("of the program");
  } catch (std::runtime_error const&) {
  }
  CHECK(step.at_boundary());
  CHECK(same_bits(before, copies_of(model->parameters())));
  CHECK(step.updates() == 1);
  take(2), take(3);
  CHECK(step.updates() == 2);
}

TEST_CASE("an update of the program's own backward passes that is not finite is skipped, and its loss is named") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.01);
  keel::step<skipping> step{model, optimizer};
  auto const before = copies_of(model->parameters());
  {
    auto micro_batch = step.open();
    auto const [a, b] = two_losses(model, 0);
    (a * NAN).backward();
    auto const outcome = micro_batch.close(keel::losses{{"a", a * NAN}, {"b", b}});
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->where == "the loss a");
    CHECK_THROWS_AS(micro_batch.close(a), keel::error);
  }
  {
    // The loss says nothing of it: the gradients do.
    auto micro_batch = step.open();
    auto const [a, b] = two_losses(model, 0);
    (b * INFINITY).backward();
    auto const outcome = micro_batch.close(a);
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->why == keel::reason::nonfinite_gradient);
  }
  CHECK(same_bits(before, copies_of(model->parameters())));
}

TEST_CASE("a trainer records, saves and resumes what the program goes back through itself") {
  auto const train = [](std::filesystem::path const& directory, int until) {
    auto const model = make_small();
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory})};
    run.resume();
    for (auto i = static_cast<std::uint64_t>(run.cursor().consumed); i < static_cast<std::uint64_t>(until); ++i) {
      auto micro_batch = run.open(8);
      auto const [a, b] = two_losses(model, i);
      a.backward();
      b.backward();
      micro_batch.close(keel::losses{{"a", a}, {"b", b}});
    }
    run.finish();
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = train(directory / "whole", 9);
  train(directory / "cut", 5);
  CHECK(same_bits(whole, train(directory / "cut", 9)));
  auto const lines = read_lines(directory / "cut" / "metrics.jsonl");
  REQUIRE(lines.size() == 9);
  CHECK(nlohmann::json::parse(lines[8])["own"].contains("loss/a"));
}
