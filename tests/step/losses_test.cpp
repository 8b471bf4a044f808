// What a loss function may be and return: losses by name, no batch at all, sums in place of means.
#include <cmath>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct skipping : keel::recipe<keel::nonfinite::skip<5>> {};
struct of_three : keel::recipe<keel::accumulate<3>, keel::nonfinite::skip<5>> {};
struct sum_of_three : keel::recipe<keel::accumulate<3, keel::sum>, keel::nonfinite::skip<5>> {};

struct on_a_device : keel::step_environment {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

auto two_losses(std::shared_ptr<small_module> const& model) {
  return [model](pair_batch const& batch) {
    at::Tensor const out = model->forward(batch.first);
    return keel::losses{{"error", at::mse_loss(out, batch.second)}, {"size", out.abs().mean(), 0.25}};
  };
}

template <class Recipe>
void named_in_a_run() {
  scratch_directory const directory;
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory / "run", .updates = 4})};
  std::vector<std::vector<std::pair<std::string, double>>> seen;
  run.on([&](keel::event::update_end const& end) { seen.emplace_back(end.losses.begin(), end.losses.end()); });
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 20; ++i) batches.push_back(make_pair_batch(i, 3 + static_cast<std::int64_t>(i % 4)));
  run.fit(batches, two_losses(model));
  auto const lines = read_lines(directory / "run" / "metrics.jsonl");
  REQUIRE(lines.size() == 4);
  REQUIRE(seen.size() == 4);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    auto const line = nlohmann::json::parse(lines[i]);
    double const error = line["own"]["loss/error"], size = line["own"]["loss/size"], loss = line["loss"];
    CHECK(loss == Approx(error + 0.25 * size));
    REQUIRE(seen[i].size() == 2);
    CHECK(seen[i][0] == std::pair<std::string, double>("error", error));
    CHECK(seen[i][1] == std::pair<std::string, double>("size", size));
  }
}

std::string words_of(std::function<void()> const& call) {
  try {
    call();
  } catch (keel::error const& thrown) {
    return thrown.what();
  }
  return "";
}

}  // namespace

TEST_CASE("several losses by name train as their sum does, to the bit, and each is recorded without its factor") {
  auto const mine = make_small();
  auto const theirs = make_small();
  torch::optim::AdamW my_optimizer(mine->parameters(), 0.01), their_optimizer(theirs->parameters(), 0.01);
  keel::step<skipping> step{mine, my_optimizer};
  for (std::uint64_t i = 0; i < 100; ++i) {
    auto const batch = make_pair_batch(i);
    step(batch, two_losses(mine));
    their_optimizer.zero_grad();
    at::Tensor const out = theirs->forward(batch.first);
    (at::mse_loss(out, batch.second) + 0.25 * out.abs().mean()).backward();
    their_optimizer.step();
  }
  CHECK(same_bits(mine->parameters(), theirs->parameters()));

  struct saving : keel::recipe<keel::checkpoint::every<10_steps>> {};
  struct saving_of_three : keel::recipe<keel::checkpoint::every<10_steps>, keel::accumulate<3>> {};
  named_in_a_run<saving>();
  named_in_a_run<saving_of_three>();
}

TEST_CASE("a named loss that is not finite is named in the outcome, on the host and on a device") {
  auto const check = [](auto environment) {
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::step<skipping, decltype(environment)> step{model, optimizer};
    auto const before = copies_of(model->parameters());
    auto outcome = step(make_pair_batch(1), [&](pair_batch const& batch) {
      at::Tensor const out = model->forward(batch.first).mean();
      return keel::losses{{"policy", out}, {"value", out * NAN, 0.5}, {"entropy", out * INFINITY}};
    });
    if (auto const late = step.settle()) outcome = *late;
    REQUIRE(outcome.skipped() != nullptr);
    CHECK(outcome.skipped()->why == keel::reason::nonfinite_loss);
    CHECK(outcome.skipped()->where == "the loss value");
    CHECK(same_bits(before, copies_of(model->parameters())));
  };
  check(keel::step_environment{});
  check(on_a_device{});
}

TEST_CASE("losses that cannot be summed are rejected by name") {
  at::Tensor const one = at::ones({}, at::requires_grad());
  CHECK(words_of([&] { keel::losses{{"a", one}, {"a", one}}; }).find("\"a\" appears twice") != std::string::npos);
  CHECK(words_of([&] { keel::losses{{"", one}}; }).find("empty name") != std::string::npos);
  CHECK(words_of([&] { keel::losses{{"a", at::ones({3})}}; }).find("is [3] of Float. Use its mean() or sum()") != std::string::npos);
  CHECK(words_of([&] { keel::losses{{"a", at::Tensor()}}; }).find("is nothing") != std::string::npos);
  CHECK(words_of([&] { keel::losses{{"a", one, NAN}}; }).find("factor") != std::string::npos);
  CHECK(words_of([&] { static_cast<void>(keel::losses().total()); }).find("Name at least one") != std::string::npos);
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::step<skipping> step{model, optimizer};
  CHECK(words_of([&] { step(make_pair_batch(1), [&](pair_batch const& batch) { return model->forward(batch.first); }); })
            .find("several by name as keel::losses") != std::string::npos);
}

TEST_CASE("a step without a batch has the bits of a loop by hand, also under a trace and accumulation") {
  auto const check = [](auto recipe, int micro_batches) {
    auto const mine = make_small();
    auto const theirs = make_small();
    torch::optim::AdamW my_optimizer(mine->parameters(), 0.01), their_optimizer(theirs->parameters(), 0.01);
    keel::trainer<typename decltype(recipe)::type> run{mine, my_optimizer, quiet()};
    at::Tensor const points = at::linspace(-1, 1, 48).reshape({8, 6});
    for (int i = 0; i < 20; ++i) {
      their_optimizer.zero_grad();
      for (int j = 0; j < micro_batches; ++j) {
        at::Tensor const here = points + 0.1 * j;
        run.step([&, here] { return mine->forward(here).square().mean(); });
        (theirs->forward(here).square().mean()).backward();
      }
      for (auto const& one : theirs->parameters()) one.mutable_grad().mul_(1.0 / micro_batches);
      their_optimizer.step();
    }
    CHECK(same_bits(mine->parameters(), theirs->parameters()));
  };
  struct of_two : keel::recipe<keel::accumulate<2>> {};
  check(std::type_identity<skipping>{}, 1);
  check(std::type_identity<of_two>{}, 2);
}

TEST_CASE("fit without batches goes on where it stopped, with the bits of a run that did not stop") {
  struct saving : keel::recipe<keel::checkpoint::every<3_steps>, keel::determinism::seeded<4>> {};
  auto const train = [](std::filesystem::path const& directory, std::int64_t stop_at) {
    at::manual_seed(1);
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<saving> run{model, optimizer, quiet({.run_directory = directory, .updates = 12})};
    run.on([&](keel::event::update_end const& end) {
      if (end.update == stop_at) run.request_stop();
    });
    run.fit([&] { return model->forward(at::randn({4, 6}).to(device())).square().mean(); });
    return copies_of(model->parameters());
  };
  scratch_directory const directory;
  auto const whole = train(directory / "whole", 0);
  train(directory / "cut", 5);
  CHECK(same_bits(whole, train(directory / "cut", 0)));

  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<skipping> endless{model, optimizer, quiet()};
  CHECK(words_of([&] { endless.fit([&] { return model->parameters()[0].sum(); }); }).find(".updates") != std::string::npos);
}

TEST_CASE("a function with state of its own is called itself where there is no batch") {
  struct counting {
    std::shared_ptr<small_module> model;
    int calls = 0;
    at::Tensor operator()() {
      ++calls;
      return model->forward(at::ones({2, 6}).to(device())).mean();
    }
  };
  counting loss{make_small()};
  keel::adamw optimizer(loss.model->parameters(), 0.01);
  keel::trainer<skipping> run{loss.model, optimizer, quiet()};
  for (int i = 0; i < 3; ++i) run.step(loss);
  CHECK(loss.calls == 3);
}

TEST_CASE("keel::sum adds micro-batches up: the gradient of N backward passes that nothing divides, ragged or not") {
  auto const mine = make_small();
  auto const theirs = make_small();
  torch::optim::SGD my_optimizer(mine->parameters(), 0.01), their_optimizer(theirs->parameters(), 0.01);
  keel::step<sum_of_three> step{mine, my_optimizer};
  double last = 0.0;
  for (std::uint64_t i = 0; i < 10; ++i) {
    their_optimizer.zero_grad();
    double sum = 0.0;
    for (std::uint64_t j = 0; j < 3; ++j) {
      auto const batch = make_pair_batch(3 * i + j, 2 + static_cast<std::int64_t>(j));
      if (auto const updated = step(batch, mean_squared_error(mine)).updated()) last = updated->loss;
      at::Tensor const loss = mean_squared_error(theirs)(batch);
      loss.backward();
      sum += loss.item<double>();
    }
    their_optimizer.step();
    CHECK(last == Approx(sum));
  }
  CHECK(same_bits(mine->parameters(), theirs->parameters()));
}
