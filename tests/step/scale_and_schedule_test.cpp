#include "../support.hpp"

#include <numbers>

using namespace keel_test;
using namespace keel::literals;
namespace schedule = keel::schedule;

TEST_CASE("the scaler follows the published algorithm over random overflow patterns, and never below its floor") {
  std::mt19937_64 engine(7);
  auto settings = keel::loss_scale::dynamic<keel::loss_scale::growth_interval<5>, keel::loss_scale::floor<2.0>>::configured;
  settings.raise_at_floor = false;
  for (int pattern = 0; pattern < 1000; ++pattern) {
    keel::grad_scaler scaler(settings);
    double scale = 65536.0;
    int tracker = 0;
    auto const odds = engine() % 10;
    for (int step = 0; step < 60; ++step) {
      bool const overflow = engine() % 10 < odds;
      scaler.update(overflow);
      if (overflow) {
        scale = std::max(2.0, scale * 0.5);
        tracker = 0;
      } else if (++tracker == 5) {
        scale *= 2.0;
        tracker = 0;
      }
      REQUIRE(scaler.factor() == scale);
    }
  }
}

TEST_CASE("loss_scale_falls_to_the_floor_and_the_run_ends_there_by_name") {
  keel::grad_scaler scaler(keel::loss_scale::dynamic<keel::loss_scale::initial<4.0>>::configured);
  scaler.update(true);
  scaler.update(true);
  CHECK(scaler.factor() == 1.0);
  try {
    scaler.update(true);
    FAIL("an overflow at the floor went unnoticed");
  } catch (keel::nonfinite_error const& thrown) {
    CHECK(thrown.id() == "E10");
  }
}

TEST_CASE("a scaled loss and its gradients differ from the plain ones by the factor") {
  keel::grad_scaler scaler(keel::loss_scale::fixed<8.0>::configured);
  at::Tensor const x = at::ones({}).requires_grad_();
  scaler.scale(x * 3).backward();
  CHECK(x.grad().item<double>() == 24.0);
  scaler.update(true);
  CHECK(scaler.factor() == 8.0);
}

TEST_CASE("schedules have the published values at their corners and never leave [min, 1]") {
  auto const cosine = schedule::cosine<schedule::warmup<10_steps>, schedule::min_ratio<0.1>>::configured;
  CHECK(keel::schedule_factor(cosine, 0, 110, 0.1) == Approx(0.1));
  CHECK(keel::schedule_factor(cosine, 9, 110, 0.1) == Approx(1.0));
  CHECK(keel::schedule_factor(cosine, 10, 110, 0.1) == Approx(1.0));
  CHECK(keel::schedule_factor(cosine, 60, 110, 0.1) == Approx(0.55));
  CHECK(keel::schedule_factor(cosine, 35, 110, 0.1) == Approx(0.1 + 0.9 * 0.5 * (1.0 + std::cos(std::numbers::pi / 4))));
  CHECK(keel::schedule_factor(cosine, 110, 110, 0.1) == Approx(0.1));
  CHECK(keel::schedule_factor(cosine, 9999, 110, 0.1) == Approx(0.1));

  auto const linear = schedule::linear<schedule::warmup_ratio<0.1>>::configured;
  CHECK(keel::schedule_factor(linear, 4, 100, 0.0) == Approx(0.5));
  CHECK(keel::schedule_factor(linear, 55, 100, 0.0) == Approx(0.5));
  CHECK(keel::schedule_factor(linear, 100, 100, 0.0) == 0.0);

  auto const stable = schedule::warmup_stable_decay<schedule::warmup<10_steps>, schedule::decay<20_steps>>::configured;
  CHECK(keel::schedule_factor(stable, 5, 100, 0.0) == Approx(0.6));
  CHECK(keel::schedule_factor(stable, 50, 100, 0.0) == 1.0);
  CHECK(keel::schedule_factor(stable, 80, 100, 0.0) == 1.0);
  CHECK(keel::schedule_factor(stable, 90, 100, 0.0) == Approx(0.5));
  CHECK(keel::schedule_factor(stable, 100, 100, 0.0) == 0.0);

  for (auto const& one : {cosine, linear, stable}) {
    for (std::int64_t update = 0; update < 300; ++update) {
      double const factor = keel::schedule_factor(one, update, 110, 0.1);
      REQUIRE(factor >= 0.0);
      REQUIRE(factor <= 1.0);
    }
  }
}

TEST_CASE("every parameter group keeps its own rate, and min_lr is absolute") {
  auto const model = make_small();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(model->first->parameters());
  groups.emplace_back(model->second->parameters());
  torch::optim::SGD optimizer(std::move(groups), torch::optim::SGDOptions(1.0));
  optimizer.param_groups()[1].options().set_lr(0.5);
  keel::lr_schedule rates(optimizer, schedule::linear<schedule::min_lr<0.1>>::configured, 10);
  for (int i = 0; i < 10; ++i) rates.advance(keel::outcome::updated{1.0, 1.0, 1e-3});
  rates.apply(optimizer);
  CHECK(optimizer.param_groups()[0].options().get_lr() == Approx(0.1));
  CHECK(optimizer.param_groups()[1].options().get_lr() == Approx(0.1));
}
