#include <numbers>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
namespace schedule = keel::schedule;

TEST_CASE("the scaler follows the published algorithm over 10,000 random overflow patterns, and never below its floor") {
  std::mt19937_64 engine(7);
  auto settings = keel::loss_scale::dynamic<keel::loss_scale::growth_interval<5>, keel::loss_scale::floor<2.0>>::configured;
  settings.raise_at_floor = false;
  for (int pattern = 0; pattern < 10000; ++pattern) {
    settings.hysteresis = 1 + static_cast<int>(engine() % 3);
    keel::grad_scaler scaler(settings);
    // Micikevicius et al. 2018 as GradScaler does it, and Megatron-LM's hysteresis.
    double scale = 65536.0;
    int tracker = 0;
    long long patience = settings.hysteresis;
    auto const odds = engine() % 10;
    for (int step = 0; step < 60; ++step) {
      bool const overflow = engine() % 10 < odds;
      scaler.update(overflow);
      if (overflow) {
        tracker = 0;
        if (--patience <= 0) scale = std::max(2.0, scale * 0.5);
      } else if (++tracker == 5) {
        tracker = 0;
        patience = settings.hysteresis;
        scale *= 2.0;
      }
      REQUIRE(scaler.factor() == scale);
    }
  }
}

TEST_CASE("a scaler that is saved anywhere goes on as one that was not") {
  auto const settings =
      keel::loss_scale::dynamic<keel::loss_scale::growth_interval<3>, keel::loss_scale::hysteresis<3>>::configured;
  std::mt19937_64 engine(8);
  for (int pattern = 0; pattern < 200; ++pattern) {
    keel::grad_scaler whole(settings);
    auto resumed = std::make_unique<keel::grad_scaler>(settings);
    for (int step = 0; step < 30; ++step) {
      bool const overflow = engine() % 3 == 0;
      whole.update(overflow);
      resumed->update(overflow);
      REQUIRE(whole.factor() == resumed->factor());
      nlohmann::json state;
      keel::tensor_map tensors;
      keel::state_writer writer(state, tensors);
      resumed->visit(writer);
      resumed = std::make_unique<keel::grad_scaler>(settings);
      keel::state_reader reader(state, tensors, "a test");
      resumed->visit(reader);
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

TEST_CASE("one_cycle rises and falls along half cosines, and its warm-up is 0.3 of the run") {
  auto const cycle = schedule::one_cycle<schedule::start_ratio<0.1>, schedule::min_ratio<0.01>>::configured;
  CHECK(keel::schedule_factor(cycle, 0, 100, 0.01) == Approx(0.1));
  CHECK(keel::schedule_factor(cycle, 29, 100, 0.01) == Approx(1.0));
  CHECK(keel::schedule_factor(cycle, 64, 100, 0.01) == Approx(0.505));
  CHECK(keel::schedule_factor(cycle, 99, 100, 0.01) == Approx(0.01));
  CHECK(keel::schedule_factor(cycle, 200, 100, 0.01) == Approx(0.01));
  auto const early = schedule::one_cycle<schedule::warmup<10_steps>>::configured;
  CHECK(keel::schedule_factor(early, 9, 100, 0.0) == Approx(1.0));
}

TEST_CASE("plateau lowers the rate after a patience without a lower mean loss, down to its minimum, and only then") {
  using schedule::plateau;
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  constexpr auto settings = plateau<schedule::patience<10_steps>, schedule::threshold<0.1>, schedule::min_ratio<0.2>,
                                    schedule::warmup<5_steps>>::configured;
  keel::lr_schedule rates(optimizer, settings, 0);
  auto const block = [&](double loss, int updates = 10) {
    for (int i = 0; i < updates; ++i) rates.advance(keel::outcome::updated{loss + (i % 2 == 0 ? 0.5 : -0.5), 1.0, 1.0});
    return rates.rate();
  };
  CHECK(rates.rate() == Approx(0.2));
  CHECK(block(100.0, 5) == Approx(1.0));  // the warm-up's losses are no reference
  CHECK(block(10.0) == 1.0);
  CHECK(block(8.0) == 1.0);
  CHECK(block(7.5) == 0.5);  // lower, but not by a tenth
  for (int i = 0; i < 30; ++i) rates.advance(keel::outcome::skipped{keel::reason::nonfinite_loss, ""});
  CHECK(rates.rate() == 0.5);
  CHECK(block(7.0) == 0.5);
  CHECK(block(7.0) == 0.25);
  CHECK(block(7.0) == 0.2);

  nlohmann::json state;
  keel::tensor_map tensors;
  block(1.0, 5);
  keel::state_writer writer(state, tensors);
  rates.visit(writer);
  keel::lr_schedule resumed(optimizer, settings, 0);
  keel::state_reader reader(state, tensors, "a test");
  resumed.visit(reader);
  for (int i = 0; i < 40; ++i) {
    rates.advance(keel::outcome::updated{1.0, 1.0, 1.0});
    resumed.advance(keel::outcome::updated{1.0, 1.0, 1.0});
    REQUIRE(rates.rate() == resumed.rate());
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
