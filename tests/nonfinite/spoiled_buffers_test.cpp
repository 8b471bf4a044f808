// A batch whose values are all finite can make statistics infinite: the update is skipped, and they are as before it.
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct skips : keel::recipe<keel::nonfinite::skip<10>> {};
struct saves : keel::recipe<keel::nonfinite::skip<10>, keel::checkpoint::every<2_steps>> {};
struct raises : keel::recipe<> {};
struct accumulates : keel::recipe<keel::nonfinite::skip<10>, keel::accumulate<2>> {};

struct normed : torch::nn::Module {
  normed()
      : first(register_module("first", torch::nn::Linear(4, 6))),
        norm(register_module("norm", torch::nn::BatchNorm1d(6))),
        second(register_module("second", torch::nn::Linear(6, 1))) {
    // Infinite for good, as a mask is.
    mask = register_buffer("mask", at::full({3}, -INFINITY));
    at::manual_seed(2);
    at::NoGradGuard const no_grad;
    for (at::Tensor& one : parameters()) one.uniform_(-0.5, 0.5);
  }
  at::Tensor loss(at::Tensor const& x) { return second(norm(first(x))).square().mean(); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
  at::Tensor mask;
};

std::vector<at::Tensor> batches_with(std::vector<std::size_t> const& bad, std::size_t count = 8) {
  at::manual_seed(7);
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(at::rand({5, 4}));
    if (std::find(bad.begin(), bad.end(), i) != bad.end()) all.back()[3][1] = 1e30;
  }
  return all;
}

}  // namespace

TEST_CASE(
    "a finite row that makes batch statistics infinite is skipped with the buffer's name and the row, and training goes on as "
    "without it") {
  normed with, without;
  torch::optim::SGD of_with(with.parameters(), 0.1), of_without(without.parameters(), 0.1);
  keel::step<skips> step{with, of_with}, clean{without, of_without};
  auto batches = batches_with({3});
  for (std::size_t i = 0; i < batches.size(); ++i) {
    auto const outcome = step(batches[i], [&](at::Tensor const& x) { return with.loss(x); });
    if (i != 3) {
      CHECK(outcome.updated() != nullptr);
      clean(batches[i], [&](at::Tensor const& x) { return without.loss(x); });
      continue;
    }
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->why == keel::reason::nonfinite_buffer);
    CHECK(outcome.skipped()->where == "norm.running_var");
    CHECK(outcome.skipped()->origin ==
          "the forward pass made the buffer norm.running_var non-finite from a batch that is finite; its largest number, "
          "1e+30, is in "
          "micro-batch 0, row 3");
  }
  CHECK(same_bits(with.parameters(), without.parameters()));
  CHECK(same_bits(with.buffers(), without.buffers()));
}

TEST_CASE("a run that saves meets such a batch and ends as finished") {
  scratch_directory const directory;
  normed model;
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  keel::trainer<saves> run{model, optimizer, quiet({.run_directory = directory.path(), .epochs = 1})};
  auto const ended = run.fit(batches_with({3}), [&](at::Tensor const& x) { return model.loss(x); });
  CHECK(ended.is<keel::result::finished>());
  CHECK(run.updates() == 7);
  CHECK(at::isfinite(model.norm->running_var).all().item<bool>());
}

TEST_CASE("raise names the update, the buffer and the row, and the second micro-batch of an update counts too") {
  normed model;
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  keel::step<raises> step{model, optimizer};
  auto const batches = batches_with({1});
  step(batches[0], [&](at::Tensor const& x) { return model.loss(x); });
  auto const before = copies_of(model.parameters());
  try {
    step(batches[1], [&](at::Tensor const& x) { return model.loss(x); });
    FAIL("an update with infinite statistics was applied");
  } catch (keel::nonfinite_error const& thrown) {
    std::string const words = thrown.what();
    CHECK(words.find("[E08] non-finite buffer in norm.running_var at update 2: ") == 0);
    CHECK(words.find("micro-batch 0, row 3") != std::string::npos);
  }
  CHECK(same_bits(before, copies_of(model.parameters())));
  normed other;
  torch::optim::SGD of_other(other.parameters(), 0.1);
  keel::step<accumulates> accumulating{other, of_other};
  auto const all = batches_with({1}, 4);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const outcome = accumulating(all[i], [&](at::Tensor const& x) { return other.loss(x); });
    if (i != 1) continue;
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->origin.find("micro-batch 1, row 3") != std::string::npos);
  }
  CHECK(at::isfinite(other.norm->running_var).all().item<bool>());
}

TEST_CASE("a buffer that was infinite before the update, or grows, is not judged") {
  struct caching : torch::nn::Module {
    caching()
        : layer(register_module("layer", torch::nn::Linear(4, 1))), cache(register_buffer("cache", at::full({2}, INFINITY))) {}
    torch::nn::Linear layer;
    at::Tensor cache;
  };
  caching model;
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  keel::step<skips> step{model, optimizer};
  for (int i = 0; i < 3; ++i) {
    auto const outcome = step([&] {
      at::NoGradGuard const no_grad;
      if (i == 1) model.cache.add_(1.0);
      if (i == 2) model.cache.set_data(at::full({5}, INFINITY));
      at::AutoGradMode const enabled(true);
      return model.layer(at::ones({3, 4})).square().mean();
    });
    CHECK(outcome.updated() != nullptr);
  }
}

TEST_CASE("a finite gradient whose square is infinite is skipped, so that no moment stands still for good; a clipped one trains") {
  struct clips : keel::recipe<keel::nonfinite::skip<10>, keel::clip::global_norm<1.0>> {};
  auto const train = [](auto* of, double factor) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<std::remove_pointer_t<decltype(of)>> step{model, optimizer};
    auto const outcome =
        step(make_pair_batch(1), [&](pair_batch const& batch) { return mean_squared_error(model)(batch) * factor; });
    auto const before = copies_of(model->parameters());
    auto const next = step(make_pair_batch(2), mean_squared_error(model));
    CHECK(next.updated() != nullptr);
    auto const after = copies_of(model->parameters());
    for (std::size_t i = 0; i < after.size(); ++i) CHECK_FALSE(at::equal(after[i], before[i]));
    return outcome;
  };
  auto const large = train(static_cast<skips*>(nullptr), 1e22);
  REQUIRE(large.skipped() != nullptr);
  CHECK(large.skipped()->why == keel::reason::nonfinite_gradient);
  CHECK(large.skipped()->origin.find("the square of a float32 above 1.8e19 overflows") != std::string::npos);
  CHECK(train(static_cast<skips*>(nullptr), 1e10).updated() != nullptr);
  CHECK(train(static_cast<clips*>(nullptr), 1e22).updated() != nullptr);
}
