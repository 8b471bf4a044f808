// Optimizers with a closure, such as LBFGS.
#include <cmath>

#include <torch/optim/lbfgs.h>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct skipping : keel::recipe<keel::nonfinite::skip<5>> {};
struct of_two : keel::recipe<keel::accumulate<2>, keel::nonfinite::skip<5>> {};
struct saving : keel::recipe<keel::checkpoint::every<2_steps>, keel::nonfinite::skip<5>> {};

torch::optim::LBFGSOptions options(bool searches) {
  torch::optim::LBFGSOptions chosen(0.5);
  chosen.max_iter(4).history_size(5);
  if (searches) chosen.line_search_fn("strong_wolfe");
  return chosen;
}

/// With a batch norm, whose statistics every evaluation moves.
struct with_statistics : torch::nn::Module {
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d normalise{nullptr};
  with_statistics() {
    first = register_module("first", torch::nn::Linear(6, 5));
    normalise = register_module("normalise", torch::nn::BatchNorm1d(5));
    last = register_module("last", torch::nn::Linear(5, 1));
  }
  at::Tensor forward(at::Tensor const& x) { return last(at::tanh(normalise(first(x)))); }
};
std::shared_ptr<with_statistics> make_model() {
  at::manual_seed(3);
  return std::make_shared<with_statistics>();
}
at::Tensor loss_on(with_statistics& model, pair_batch const& batch) {
  return at::mse_loss(model.forward(batch.first), batch.second);
}
std::vector<at::Tensor> state_of(with_statistics& model) {
  auto all = copies_of(model.parameters());
  for (at::Tensor const& one : copies_of(model.buffers())) all.push_back(one);
  return all;
}

}  // namespace

TEST_CASE("an optimizer with a closure has the bits of a loop by hand over 100 updates") {
  for (bool const searches : {false, true}) {
    auto const mine = make_model(), theirs = make_model();
    torch::optim::LBFGS my_optimizer(mine->parameters(), options(searches)), their_optimizer(theirs->parameters(), options(searches));
    keel::step<skipping> step{mine, my_optimizer};
    for (std::uint64_t i = 0; i < 100; ++i) {
      auto const batch = make_pair_batch(i % 3, 16);
      auto const outcome = step(batch, [&](pair_batch const& one) { return loss_on(*mine, one); });
      at::Tensor const first = their_optimizer.step([&] {
        their_optimizer.zero_grad();
        at::Tensor loss = loss_on(*theirs, batch);
        loss.backward();
        return loss;
      });
      REQUIRE(outcome.updated() != nullptr);
      REQUIRE(outcome.updated()->loss == first.item<double>());
    }
    CHECK(same_bits(state_of(*mine), state_of(*theirs)));
  }
}

TEST_CASE("an optimizer with a closure sums micro-batches in every evaluation") {
  auto const mine = make_model(), theirs = make_model();
  torch::optim::LBFGS my_optimizer(mine->parameters(), options(true)), their_optimizer(theirs->parameters(), options(true));
  keel::step<of_two> step{mine, my_optimizer};
  for (std::uint64_t i = 0; i < 20; ++i) {
    for (std::uint64_t j = 0; j < 2; ++j)
      step(make_pair_batch(2 * i + j), [&](pair_batch const& one) { return loss_on(*mine, one); });
    their_optimizer.step([&] {
      their_optimizer.zero_grad();
      double sum = 0.0;
      for (std::uint64_t j = 0; j < 2; ++j) {
        at::Tensor const loss = loss_on(*theirs, make_pair_batch(2 * i + j));
        loss.backward();
        sum += 8 * loss.item<double>();
      }
      for (auto const& one : theirs->parameters()) one.mutable_grad().mul_(0.5);
      return at::scalar_tensor(sum / 16, at::kDouble);
    });
  }
  CHECK(same_bits(state_of(*mine), state_of(*theirs)));
}

TEST_CASE("the last, partial accumulation of an optimizer with a closure is the update of the micro-batches that it has") {
  auto const mine = make_model(), theirs = make_model();
  torch::optim::LBFGS my_optimizer(mine->parameters(), options(true)), their_optimizer(theirs->parameters(), options(true));
  keel::step<of_two> step{mine, my_optimizer};
  keel::step<skipping> alone{theirs, their_optimizer};
  step(make_pair_batch(1), [&](pair_batch const& one) { return loss_on(*mine, one); });
  auto const last = step.flush();
  REQUIRE(last);
  CHECK(last->is<keel::result::updated>());
  alone(make_pair_batch(1), [&](pair_batch const& one) { return loss_on(*theirs, one); });
  CHECK(same_bits(state_of(*mine), state_of(*theirs)));
}

TEST_CASE("a closure's update that is not finite leaves parameters, state and buffers as they were") {
  // At each evaluation in turn, from the first, until one update has fewer.
  for (int bad = 1; bad < 9; ++bad) {
    auto const model = make_model();
    torch::optim::LBFGS optimizer(model->parameters(), options(true));
    keel::step<skipping> step{model, optimizer};
    auto const clean = [&](std::uint64_t seed) {
      return step(make_pair_batch(seed), [&](pair_batch const& one) { return loss_on(*model, one); });
    };
    for (std::uint64_t i = 0; i < 3; ++i) clean(i);
    auto const before = state_of(*model);
    auto const image = image_of(*model, optimizer);
    int evaluations = 0;
    auto const outcome = step(make_pair_batch(9), [&](pair_batch const& one) {
      at::Tensor const loss = loss_on(*model, one);
      return ++evaluations == bad ? loss * NAN : loss;
    });
    if (evaluations < bad) break;
    CAPTURE(bad);
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->why == keel::reason::nonfinite_loss);
    CHECK(same_bits(before, state_of(*model)));
    CHECK(same_bits(image, image_of(*model, optimizer)));
    // It goes on as one that never met it.
    auto const other = make_model();
    torch::optim::LBFGS other_optimizer(other->parameters(), options(true));
    keel::step<skipping> other_step{other, other_optimizer};
    for (std::uint64_t i = 0; i < 3; ++i)
      other_step(make_pair_batch(i), [&](pair_batch const& one) { return loss_on(*other, one); });
    for (std::uint64_t i = 3; i < 6; ++i) {
      clean(i);
      other_step(make_pair_batch(i), [&](pair_batch const& one) { return loss_on(*other, one); });
    }
    CHECK(same_bits(state_of(*model), state_of(*other)));
  }
}

TEST_CASE("an exception inside a closure leaves parameters and state as they were, and goes on") {
  auto const model = make_model();
  torch::optim::LBFGS optimizer(model->parameters(), options(false));
  keel::step<skipping> step{model, optimizer};
  for (std::uint64_t i = 0; i < 3; ++i)
    step(make_pair_batch(i), [&](pair_batch const& one) { return loss_on(*model, one); });
  auto const before = state_of(*model);
  auto const image = image_of(*model, optimizer);
  int evaluations = 0;
  CHECK_THROWS_AS(step(make_pair_batch(4),
                       [&](pair_batch const& one) {
                         if (++evaluations == 3) throw std::runtime_error("of the program");
                         return loss_on(*model, one);
                       }),
                  std::runtime_error);
  CHECK(same_bits(before, state_of(*model)));
  CHECK(same_bits(image, image_of(*model, optimizer)));
  CHECK(step.at_boundary());
}

TEST_CASE("LBFGS resumes with the bits of a run that was not stopped") {
  auto const train = [](std::filesystem::path const& directory, std::int64_t until, bool searches) {
    auto const model = make_model();
    torch::optim::LBFGS optimizer(model->parameters(), options(searches));
    keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory, .updates = until})};
    std::vector<pair_batch> batches;
    for (std::uint64_t i = 0; i < 30; ++i) batches.push_back(make_pair_batch(i));
    run.fit(batches, [&](pair_batch const& one) { return loss_on(*model, one); });
    return state_of(*model);
  };
  for (bool const searches : {false, true}) {
    scratch_directory const directory;
    auto const whole = train(directory / "whole", 9, searches);
    for (std::int64_t const at : {1, 4, 7}) train(directory / "cut", at, searches);
    CHECK(same_bits(whole, train(directory / "cut", 9, searches)));
  }
}

TEST_CASE("a closure and what it cannot be with are named") {
  auto const model = make_model();
  torch::optim::LBFGS optimizer(model->parameters(), options(false));
  torch::optim::Optimizer& hidden = optimizer;
  struct clipping : keel::recipe<keel::clip::global_norm<1.0>> {};
  try {
    keel::step<clipping>{model, hidden};
    FAIL("a clip policy with a closure was taken");
  } catch (keel::recipe_error const& thrown) {
    CHECK(thrown.id() == "G16");
  }
  keel::step<skipping> step{model, hidden};
  CHECK_THROWS_AS(step.open(), keel::error);
}
