// unity: at global scope
#include <torch/nn/modules/embedding.h>

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
  keel::step_outcome operator()(said const& batch) { return step(batch, loss_as_said(model)); }
  void warm_up() {
    for (said const& batch : steady(40)) REQUIRE((*this)(batch).is<keel::result::updated>());
  }
};

}  // namespace

TEST_CASE("a spike of the loss or of the gradient norm is left out and changes no bit; a fall is none") {
  spike_run run;
  run.warm_up();
  auto const before = copies_of(run.model.parameters());
  CHECK(run({50.0, 1.0}).get<keel::result::skipped>().why == keel::reason::loss_spike);
  CHECK(run({1.0, 50.0}).get<keel::result::skipped>().why == keel::reason::gradient_spike);
  CHECK(same_bits(run.model.parameters(), before));
  CHECK(run.step.updates() == 40);
  CHECK(run({-50.0, 1.0}).is<keel::result::updated>());
  CHECK(run({1.0, 0.0}).is<keel::result::updated>());
}

TEST_CASE("nan_is_skipped_and_does_not_blind_the_detector: 200 steps later it still fires") {
  spike_run run;
  run.warm_up();
  double const nan = std::numeric_limits<double>::quiet_NaN();
  for (said const& bad : {said{nan, 1.0}, said{1.0, nan}, said{INFINITY, 1.0}, said{1.0, INFINITY}, said{-INFINITY, 1.0}}) {
    REQUIRE(run(bad).is<keel::result::skipped>());
    REQUIRE(run({1.0, 1.0}).is<keel::result::updated>());
  }
  for (said const& batch : steady(200, 9)) REQUIRE(run(batch).is<keel::result::updated>());
  CHECK(std::isfinite(run.model.weight.item<double>()));
  CHECK(run({50.0, 1.0}).get<keel::result::skipped>().why == keel::reason::loss_spike);
}

TEST_CASE("a spike that was left out does not raise the limit for the next one") {
  spike_run run;
  run.warm_up();
  for (int i = 0; i < 50; ++i) {
    REQUIRE(run({2.5, 1.0}).is<keel::result::skipped>());
    REQUIRE(run({i % 2 == 0 ? 0.95 : 1.05, 1.0}).is<keel::result::updated>());
  }
}

TEST_CASE("before a quarter of its window is there a spike policy judges nothing") {
  spike_run run;
  for (said const& batch : steady(7)) REQUIRE(run(batch).is<keel::result::updated>());
  CHECK(run({50.0, 1.0}).is<keel::result::updated>());
}

TEST_CASE("spikes_in_a_row_end_the_run: a level that rose is not a spike, and the error says so") {
  spike_run run;
  run.warm_up();
  CHECK(run({9.0, 1.0}).is<keel::result::skipped>());
  CHECK(run({9.0, 1.0}).is<keel::result::skipped>());
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
      REQUIRE(result.template get<keel::result::updated>().clipped == (gradient > 2.0));
      REQUIRE(result.template get<keel::result::updated>().gradient_norm == Approx(gradient));
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
  CHECK(result.get<keel::result::updated>().clipped);
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
    REQUIRE(one.is<keel::result::updated>() == two.is<keel::result::updated>());
    REQUIRE(same_bits(first.weight, second.weight));
  }
  CHECK(step.clip_fraction() == resumed.clip_fraction());
}

namespace {

namespace clip = keel::clip;

struct by_magnitudes : keel::recipe<clip::global_norm<0.25, clip::order<1>>> {};
struct by_largest : keel::recipe<clip::global_norm<0.0625, clip::order<clip::infinity>>> {};
struct by_cubes : keel::recipe<clip::global_norm<0.125, clip::order<3>>> {};
struct by_squares : keel::recipe<clip::global_norm<0.25, clip::order<2.0>>> {};
struct by_default : keel::recipe<clip::global_norm<0.25>> {};

struct on_a_device : keel::step_environment {
  bool decides_on_device(at::DeviceType) const override { return true; }
};

/// What one step makes of the parameters, beside an update by hand whose gradients are clipped in double.
template <class Recipe, class Environment = keel::step_environment>
void compare_with_clipping_by_hand(double limit, double order, double rate = 0.5) {
  auto const model = make_small(), reference = make_small();
  keel::sgd optimizer(model->parameters(), torch::optim::SGDOptions(rate));
  keel::step<Recipe, Environment> step{*model, optimizer};
  for (std::uint64_t i = 0; i < 5; ++i) {
    step(make_pair_batch(i), mean_squared_error(model));
    step.settle();

    reference->zero_grad();
    mean_squared_error(reference)(make_pair_batch(i)).backward();
    double sum = 0.0;
    for (at::Tensor const& parameter : reference->parameters()) {
      at::Tensor const magnitudes = parameter.grad().to(at::kDouble).abs();
      sum =
          std::isinf(order) ? std::max(sum, magnitudes.max().item<double>()) : sum + magnitudes.pow(order).sum().item<double>();
    }
    double const norm = std::isinf(order) ? sum : std::pow(sum, 1.0 / order);
    REQUIRE(norm > limit);
    at::NoGradGuard no_grad;
    for (at::Tensor& parameter : reference->parameters()) parameter.sub_(parameter.grad() * (rate * limit / norm));
    auto const expected = reference->parameters();
    for (std::size_t p = 0; p < expected.size(); ++p) REQUIRE(at::allclose(model->parameters()[p], expected[p], 1e-5, 1e-7));
  }
}

}  // namespace

TEST_CASE("global_norm with an order bounds that norm, on the host and where updates are decided on a device") {
  compare_with_clipping_by_hand<by_magnitudes>(0.25, 1.0);
  compare_with_clipping_by_hand<by_largest>(0.0625, clip::infinity);
  compare_with_clipping_by_hand<by_cubes>(0.125, 3.0);
  compare_with_clipping_by_hand<by_default>(0.25, 2.0);
  compare_with_clipping_by_hand<by_magnitudes, on_a_device>(0.25, 1.0);
  compare_with_clipping_by_hand<by_default, on_a_device>(0.25, 2.0);
}

TEST_CASE("order 2 is the default in every bit") {
  auto const one = make_small(), two = make_small();
  keel::adamw a(one->parameters(), 0.1), b(two->parameters(), 0.1);
  keel::step<by_squares> first{*one, a};
  keel::step<by_default> second{*two, b};
  static_assert(keel::config_of<by_squares> == keel::config_of<by_default>);
  for (std::uint64_t i = 0; i < 5; ++i) {
    first(make_pair_batch(i), mean_squared_error(one));
    second(make_pair_batch(i), mean_squared_error(two));
    REQUIRE(same_bits(copies_of(one->parameters()), copies_of(two->parameters())));
  }
}

TEST_CASE("with an order the reported norm stays L2, clipped says what the order decided, and infinity is skipped unclipped") {
  struct two_weights : torch::nn::Module {
    two_weights() : weight(register_parameter("weight", at::zeros({2}))) {}
    at::Tensor weight;
  };
  struct recipe : keel::recipe<clip::global_norm<6.0, clip::order<1>>, keel::nonfinite::skip<5>> {};
  two_weights model;
  torch::optim::SGD optimizer(model.parameters(), 1.0);
  keel::step<recipe> step{model, optimizer};
  auto const update = [&](float first, float second) {
    return step(said{1.0, 1.0}, [&](said const&) { return (model.weight * at::tensor({first, second})).sum(); });
  };
  // L1 is 7, L2 is 5.
  auto const clipped = update(3.0f, -4.0f).get<keel::result::updated>();
  CHECK(clipped.gradient_norm == Approx(5.0));
  CHECK(clipped.clipped);
  CHECK(at::allclose(model.weight, at::tensor({-18.0f / 7.0f, 24.0f / 7.0f})));
  // L1 is 6, L2 is more than 4.2.
  auto const kept = update(3.0f, -3.0f).get<keel::result::updated>();
  CHECK(kept.gradient_norm == Approx(std::sqrt(18.0)));
  CHECK_FALSE(kept.clipped);
  auto const before = copies_of(model.parameters());
  // A root at 0: its value is finite and its slope is not.
  auto const steep = [&](said const&) { return (model.weight - model.weight.detach()).sqrt().sum(); };
  CHECK(step(said{1.0, 1.0}, steep).get<keel::result::skipped>().why == keel::reason::nonfinite_gradient);
  CHECK(same_bits(copies_of(model.parameters()), before));
  CHECK(step.clip_fraction() == 0.5);
}

TEST_CASE("an order bounds the unscaled sum of a window") {
  one_weight model;
  auto const parameters = model.parameters();
  using policy = keel::policy_of<by_magnitudes, keel::slot::clip>;
  for (auto const& [first, second, expected] :
       {std::tuple{0.1, 0.3, 0.2}, std::tuple{2.0, 4.0, 0.25}, std::tuple{-2.0, -4.0, -0.25}}) {
    auto window = keel::begin_update(parameters, 1024.0);
    window.add(loss_as_said(model)({1.0, first}));
    window.add(loss_as_said(model)({1.0, second}));
    auto checked = std::move(window).complete().unscale().check();
    keel::state_of<policy> state;
    auto clipped = std::get<keel::gradients<keel::stage::checked>>(std::move(checked)).clip<policy>(state);
    clipped.apply_factor();
    CHECK(model.weight.grad().item<double>() == Approx(expected));
    CHECK(clipped.clipped() == (std::abs(expected) == 0.25));
    CHECK(clipped.norm() == Approx(std::abs(first + second) / 2));
  }
}

TEST_CASE("a norm of another order clips sparse gradients as it clips dense ones") {
  auto const train = [](bool sparse) {
    keel::libtorch::seed_random(at::kCPU, 3);
    torch::nn::Embedding words(torch::nn::EmbeddingOptions(20, 4).sparse(sparse));
    torch::optim::SGD optimizer(words->parameters(), 0.5);
    keel::step<by_magnitudes> step{*words, optimizer};
    std::vector<bool> clipped;
    for (int i = 0; i < 5; ++i) {
      auto const result = step(at::tensor({1, 7, 7, 1 + i}, at::kLong), [&](at::Tensor const& ids) { return words->forward(ids).square().sum(); });
      clipped.push_back(result.get<keel::result::updated>().clipped);
    }
    CHECK(clipped[0]);
    return words->weight.detach().clone();
  };
  CHECK(at::allclose(train(true), train(false), 1e-6, 1e-7));
}
