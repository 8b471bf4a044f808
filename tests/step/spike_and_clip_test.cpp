#include <cmath>
#include <limits>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

/// One weight, whose gradient is the batch: a step's loss and norm are what the test says.
struct one_weight : torch::nn::Module {
  one_weight() : weight(register_parameter("weight", at::ones({1}))) {}
  at::Tensor weight;
};
/// A loss of the given value with the given gradient.
struct said {
  double loss;
  double gradient;
};

}  // namespace

template <>
struct keel::batch_traits<said> {
  static std::int64_t rows(said const&) { return 1; }
  static std::int64_t tokens(said const&) { return 1; }
};

namespace {

auto loss_as_said(one_weight& model) {
  return [&model](said const& batch) { return (model.weight - model.weight.detach()).sum() * batch.gradient + batch.loss; };
}

std::vector<said> steady(int count, std::uint64_t seed = 5) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<> around(0.9, 1.1);
  std::vector<said> batches;
  for (int i = 0; i < count; ++i) batches.push_back({around(engine), around(engine)});
  return batches;
}

struct skips_spikes
    : keel::recipe<keel::spike::skip<keel::spike::window<32>, keel::spike::in_a_row<3>>, keel::nonfinite::skip<10>> {};
struct clips_spikes : keel::recipe<keel::clip::zscore<4.0, keel::clip::window<32>, keel::clip::at_most<5.0>>> {};
struct clips_units : keel::recipe<keel::clip::adaptive<0.01>> {};

struct spike_run {
  one_weight model;
  torch::optim::SGD optimizer{model.parameters(), 1e-3};
  keel::step<skips_spikes> step{model, optimizer};
  keel::outcome operator()(said const& batch) { return step(batch, loss_as_said(model)); }
  void warm_up() {
    for (said const& batch : steady(40)) REQUIRE((*this)(batch).is<keel::outcome::updated>());
  }
};

}  // namespace

TEST_CASE("a spike of the loss or of the gradient norm is left out and changes no bit; a fall is none") {
  spike_run run;
  run.warm_up();
  auto const before = copies_of(run.model.parameters());
  CHECK(run({50.0, 1.0}).get<keel::outcome::skipped>().why == keel::reason::loss_spike);
  CHECK(run({1.0, 50.0}).get<keel::outcome::skipped>().why == keel::reason::gradient_spike);
  CHECK(same_bits(run.model.parameters(), before));
  CHECK(run.step.updates() == 40);
  CHECK(run({-50.0, 1.0}).is<keel::outcome::updated>());
  CHECK(run({1.0, 0.0}).is<keel::outcome::updated>());
}

TEST_CASE("nan_is_skipped_and_does_not_blind_the_detector: 200 steps later it still fires") {
  spike_run run;
  run.warm_up();
  double const nan = std::numeric_limits<double>::quiet_NaN();
  for (said const& bad : {said{nan, 1.0}, said{1.0, nan}, said{INFINITY, 1.0}, said{1.0, INFINITY}, said{-INFINITY, 1.0}}) {
    REQUIRE(run(bad).is<keel::outcome::skipped>());
    REQUIRE(run({1.0, 1.0}).is<keel::outcome::updated>());
  }
  for (said const& batch : steady(200, 9)) REQUIRE(run(batch).is<keel::outcome::updated>());
  CHECK(std::isfinite(run.model.weight.item<double>()));
  CHECK(run({50.0, 1.0}).get<keel::outcome::skipped>().why == keel::reason::loss_spike);
}

TEST_CASE("a spike that was left out does not raise the limit for the next one") {
  spike_run run;
  run.warm_up();
  for (int i = 0; i < 50; ++i) {
    REQUIRE(run({2.5, 1.0}).is<keel::outcome::skipped>());
    REQUIRE(run({i % 2 == 0 ? 0.95 : 1.05, 1.0}).is<keel::outcome::updated>());
  }
}

TEST_CASE("before a quarter of its window is there a spike policy judges nothing") {
  spike_run run;
  for (said const& batch : steady(7)) REQUIRE(run(batch).is<keel::outcome::updated>());
  CHECK(run({50.0, 1.0}).is<keel::outcome::updated>());
}

TEST_CASE("spikes_in_a_row_end_the_run: a level that rose is no spike, and the error says so") {
  spike_run run;
  run.warm_up();
  CHECK(run({9.0, 1.0}).is<keel::outcome::skipped>());
  CHECK(run({9.0, 1.0}).is<keel::outcome::skipped>());
  try {
    run({9.0, 1.0});
    FAIL("the third spike in a row went unnoticed");
  } catch (keel::diverged_error const& thrown) {
    CHECK(thrown.id() == "E14");
    CHECK(std::string(thrown.what()).find("spike of the loss at update 41, 9.0") != std::string::npos);
  }
}

TEST_CASE("clip::zscore cuts to the limit of the accepted norms, and an outlier does not raise it") {
  one_weight model;
  torch::optim::SGD optimizer(model.parameters(), 1.0);
  keel::step<clips_spikes> step{model, optimizer};
  auto const moved_by = [&](double gradient) {
    double const before = model.weight.item<double>();
    step(said{1.0, gradient}, loss_as_said(model));
    return before - model.weight.item<double>();
  };
  // No history yet: at_most alone bounds.
  CHECK(moved_by(3.0) == Approx(3.0));
  CHECK(moved_by(50.0) == Approx(5.0));
  for (said const& batch : steady(64)) step(batch, loss_as_said(model));
  double const first = moved_by(50.0);
  CHECK(first > 1.1);
  CHECK(first < 1.6);
  CHECK(moved_by(50.0) < 1.8);
  CHECK(moved_by(1.0) == Approx(1.0));
  CHECK(step.clip_fraction() == Approx(3.0 / 69.0));
}

TEST_CASE("the clip fraction is that of the applied updates, for every policy that clips") {
  struct by_norm : keel::recipe<keel::clip::global_norm<2.0>> {};
  struct by_value : keel::recipe<keel::clip::value<2.0>> {};
  auto const fraction = [](auto recipe) {
    one_weight model;
    torch::optim::SGD optimizer(model.parameters(), 1e-3);
    keel::step<decltype(recipe)> step{model, optimizer};
    for (double const gradient : {1.0, 3.0, 2.0, 1.0}) {
      auto const result = step(said{1.0, gradient}, loss_as_said(model));
      REQUIRE(result.template get<keel::outcome::updated>().clipped == (gradient > 2.0));
      REQUIRE(result.template get<keel::outcome::updated>().gradient_norm == Approx(gradient));
    }
    return step.clip_fraction();
  };
  CHECK(fraction(by_norm{}) == 0.25);
  CHECK(fraction(by_value{}) == 0.25);
}

TEST_CASE("adaptive clipping follows its formula for rows, filters, vectors and scalars") {
  at::manual_seed(4);
  std::mt19937_64 engine(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<std::int64_t>> const shapes = {{5, 7}, {4, 3, 2, 2}, {9}, {}, {0, 3}};
    std::vector<at::Tensor> parameters, gradients, expected;
    for (auto const& shape : shapes) {
      parameters.push_back(at::randn(shape) * std::pow(10.0, static_cast<double>(engine() % 7) - 5.0));
      gradients.push_back(at::randn(shape) * std::pow(10.0, static_cast<double>(engine() % 7) - 5.0));
      if (parameters.back().numel() == 0) {
        expected.push_back(gradients.back().to(at::kDouble));
        continue;
      }
      at::Tensor const weight = parameters.back().to(at::kDouble);
      at::Tensor gradient = gradients.back().to(at::kDouble).clone();
      bool const has_units = weight.dim() > 1;
      at::Tensor const w = has_units ? weight.reshape({weight.size(0), -1}) : weight.reshape({1, -1});
      at::Tensor g = has_units ? gradient.reshape({weight.size(0), -1}) : gradient.reshape({1, -1});
      for (std::int64_t unit = 0; unit < w.size(0); ++unit) {
        double const limit = 0.1 * std::max(1e-3, std::sqrt(w[unit].square().sum().item<double>()));
        double const norm = std::sqrt(g[unit].square().sum().item<double>());
        if (norm > limit) g[unit].mul_(limit / norm);
      }
      expected.push_back(g.reshape(shape));
    }
    auto const before = copies_of(gradients);
    bool const clipped = keel::clip_unit_wise(parameters, gradients, 0.1);
    bool differs = false;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      REQUIRE(at::allclose(gradients[i].to(at::kDouble), expected[i], 1e-5, 0.0));
      differs |= !at::equal(before[i], gradients[i]);
    }
    REQUIRE(clipped == differs);
  }
}

TEST_CASE("adaptive clipping is a policy of a step like any other") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<clips_units> step{model, optimizer};
  auto const before = copies_of(model->parameters());
  auto const result = step(make_pair_batch(1), mean_squared_error(model));
  CHECK(result.get<keel::outcome::updated>().clipped);
  // A row moves by at most lr times the ratio times its own norm.
  at::Tensor const moved = (model->first->weight.detach() - before[0]).norm(2, {1});
  at::Tensor const bound = before[0].norm(2, {1}).clamp_min(1e-3) * (0.1 * 0.01);
  CHECK(moved.le(bound * 1.0001).all().item<bool>());
}

TEST_CASE("a resumed step judges spikes and clips by the history that was saved") {
  struct both : keel::recipe<keel::spike::skip<keel::spike::window<32>>, keel::clip::zscore<2.0, keel::clip::window<16>>> {};
  one_weight first, second;
  torch::optim::SGD a(first.parameters(), 1e-3), b(second.parameters(), 1e-3);
  keel::step<both> step{first, a}, resumed{second, b};
  auto const batches = steady(60);
  for (said const& batch : batches) step(batch, loss_as_said(first));
  nlohmann::json state;
  keel::tensor_map tensors;
  keel::state_writer writer(state, tensors);
  step.visit(writer);
  keel::state_reader reader(state, tensors, "a test");
  resumed.visit(reader);
  second.weight.set_data(first.weight.detach().clone());
  for (said const& batch : {said{1.0, 1.2}, said{40.0, 1.0}, said{1.05, 1.3}, said{1.0, 0.9}}) {
    auto const one = step(batch, loss_as_said(first));
    auto const two = resumed(batch, loss_as_said(second));
    REQUIRE(one.is<keel::outcome::updated>() == two.is<keel::outcome::updated>());
    REQUIRE(same_bits(first.weight, second.weight));
  }
  CHECK(step.clip_fraction() == resumed.clip_fraction());
}
