#include <keel/json/load_config.hpp>
#include <numbers>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
namespace schedule = keel::schedule;

namespace {

// PyTorch's definitions of its schedulers, as its documentation writes them, in long double. `t` counts the scheduler's own
// steps from 0.

long double step_lr(std::int64_t t, std::int64_t step_size, long double gamma) { return std::pow(gamma, t / step_size); }
long double multi_step_lr(std::int64_t t, std::vector<long long> const& milestones, long double gamma) {
  long double factor = 1.0L;
  for (long long const milestone : milestones) factor *= t >= milestone ? gamma : 1.0L;
  return factor;
}
long double exponential_lr(std::int64_t t, long double gamma) { return std::pow(gamma, static_cast<long double>(t)); }
long double polynomial_lr(std::int64_t t, std::int64_t total_iters, long double power) {
  return std::pow(1.0L - static_cast<long double>(std::min(t, total_iters)) / static_cast<long double>(total_iters), power);
}
/// Walks through the cycles update by update.
long double cosine_annealing_warm_restarts(std::int64_t t, std::int64_t t_0, std::int64_t t_mult, long double eta_min) {
  std::int64_t t_cur = 0;
  std::int64_t t_i = t_0;
  for (std::int64_t i = 0; i < t; ++i) {
    if (++t_cur < t_i) continue;
    t_cur = 0;
    t_i *= t_mult;
  }
  long double const angle = std::numbers::pi_v<long double> * static_cast<long double>(t_cur) / static_cast<long double>(t_i);
  return eta_min + 0.5L * (1.0L - eta_min) * (1.0L + std::cos(angle));
}
/// Vaswani et al. 2017, over the rate of step `warmup`; steps count from 1.
long double attention_is_all_you_need(std::int64_t step, std::int64_t warmup) {
  auto const rate = [&](long double n) { return std::min(1.0L / std::sqrt(n), n * std::pow((long double)warmup, -1.5L)); };
  return rate(static_cast<long double>(step)) / rate(static_cast<long double>(warmup));
}

/// The linear rise that comes before each of them, and `t` counted from its end.
template <class After>
long double after_warmup(std::int64_t update, std::int64_t warmup, After const& after) {
  if (update < warmup) return static_cast<long double>(update + 1) / static_cast<long double>(warmup);
  return after(update - warmup);
}

bool is_close(double found, long double expected) {
  bool const close = std::abs(found - expected) <= 1e-12L * std::max(1e-3L, std::abs(expected));
  if (!close) UNSCOPED_INFO(found << " is not " << static_cast<double>(expected));
  return close;
}

}  // namespace

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
    for (int i = 0; i < updates; ++i) rates.advance(keel::result::updated{loss + (i % 2 == 0 ? 0.5 : -0.5), 1.0, 1.0});
    return rates.rate();
  };
  CHECK(rates.rate() == Approx(0.2));
  CHECK(block(100.0, 5) == Approx(1.0));  // the warm-up's losses are no reference
  CHECK(block(10.0) == 1.0);
  CHECK(block(8.0) == 1.0);
  CHECK(block(7.5) == 0.5);  // lower, but not by a tenth
  for (int i = 0; i < 30; ++i) rates.advance(keel::result::skipped{keel::reason::nonfinite_loss, ""});
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
    rates.advance(keel::result::updated{1.0, 1.0, 1.0});
    resumed.advance(keel::result::updated{1.0, 1.0, 1.0});
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
  for (int i = 0; i < 10; ++i) rates.advance(keel::result::updated{1.0, 1.0, 1e-3});
  rates.apply(optimizer);
  CHECK(optimizer.param_groups()[0].options().get_lr() == Approx(0.1));
  CHECK(optimizer.param_groups()[1].options().get_lr() == Approx(0.1));
}

TEST_CASE("step_decay, multi_step and exponential are PyTorch's StepLR, MultiStepLR and ExponentialLR, down to their minimum") {
  std::mt19937_64 engine(21);
  auto const below = [&](std::uint64_t bound) { return static_cast<long long>(engine() % bound); };
  for (int round = 0; round < 300; ++round) {
    long long const warmup = below(3) == 0 ? 0 : below(40);
    double const factor = 0.05 + 0.94 * static_cast<double>(below(1000)) / 1000.0;
    double const min = below(2) == 0 ? 0.0 : 0.2 * static_cast<double>(below(1000)) / 1000.0;
    long long const interval = 1 + below(60);
    auto const falls_to = [&](long double value) { return std::max(static_cast<long double>(min), value); };

    schedule::settings const by_step{
        .kind = schedule::kind::step_decay, .warmup = warmup, .lowered_by = factor, .interval = interval};
    schedule::settings const smooth{
        .kind = schedule::kind::exponential, .warmup = warmup, .lowered_by = factor, .interval = interval};
    schedule::settings const each{.kind = schedule::kind::exponential, .warmup = warmup, .lowered_by = factor, .interval = 1};
    schedule::settings by_milestone{.kind = schedule::kind::multi_step, .warmup = warmup, .lowered_by = factor};
    std::vector<long long> milestones;
    long long last = warmup;
    while (milestones.empty() || (milestones.size() < 8 && below(4) != 0)) milestones.push_back(last += 1 + below(50));
    for (long long const one : milestones) by_milestone.milestones[by_milestone.milestone_count++] = one;

    for (std::int64_t update = 0; update < 300; ++update) {
      CAPTURE(round, update, warmup, factor, min, interval);
      auto const found = [&](schedule::settings const& s) { return keel::schedule_factor(s, update, 0, min); };
      REQUIRE(is_close(found(by_step),
                       after_warmup(update, warmup, [&](std::int64_t t) { return falls_to(step_lr(t, interval, factor)); })));
      REQUIRE(is_close(found(each),
                       after_warmup(update, warmup, [&](std::int64_t t) { return falls_to(exponential_lr(t, factor)); })));
      REQUIRE(is_close(found(smooth), after_warmup(update, warmup, [&](std::int64_t t) {
                         long double const of_one_update = std::pow((long double)factor, 1.0L / (long double)interval);
                         return falls_to(exponential_lr(t, of_one_update));
                       })));
      // Milestones are updates of the run, also after a warm-up.
      REQUIRE(is_close(found(by_milestone), after_warmup(update, warmup, [&](std::int64_t) {
                         return falls_to(multi_step_lr(update, milestones, factor));
                       })));
    }
  }
}

TEST_CASE("polynomial is PyTorch's PolynomialLR over what the warm-up leaves of the run, and power 1 is linear") {
  std::mt19937_64 engine(22);
  for (int round = 0; round < 300; ++round) {
    auto const warmup = static_cast<long long>(engine() % 40);
    auto const total = warmup + 1 + static_cast<long long>(engine() % 200);
    double const power = 0.25 + static_cast<double>(engine() % 1000) / 200.0;
    double const min = engine() % 2 == 0 ? 0.0 : 0.1;
    schedule::settings const s{.kind = schedule::kind::polynomial, .warmup = warmup, .power = power};
    schedule::settings const line{.kind = schedule::kind::polynomial, .warmup = warmup, .power = 1.0};
    schedule::settings const linear{.kind = schedule::kind::linear, .warmup = warmup};
    for (std::int64_t update = 0; update < total + 20; ++update) {
      CAPTURE(round, update, warmup, total, power);
      REQUIRE(is_close(keel::schedule_factor(s, update, total, min), after_warmup(update, warmup, [&](std::int64_t t) {
                         return min + (1.0L - min) * polynomial_lr(t, total - warmup, power);
                       })));
      REQUIRE(is_close(keel::schedule_factor(line, update, total, min), keel::schedule_factor(linear, update, total, min)));
    }
  }
}

TEST_CASE("inverse_root is the formula of Attention is all you need, with the highest rate in the last update of the warm-up") {
  for (long long const warmup : {1LL, 2LL, 7LL, 400LL, 4000LL}) {
    schedule::settings const s{.kind = schedule::kind::inverse_root, .warmup = warmup};
    for (std::int64_t update = 0; update < 20'000; update += 1 + update / 50) {
      CAPTURE(warmup, update);
      REQUIRE(is_close(keel::schedule_factor(s, update, 0, 0.0), attention_is_all_you_need(update + 1, warmup)));
    }
    CHECK(keel::schedule_factor(s, warmup - 1, 0, 0.0) == 1.0);
    CHECK(keel::schedule_factor(s, warmup, 0, 0.0) < 1.0);
    CHECK(keel::schedule_factor(s, 10'000'000, 0, 0.1) == 0.1);
  }
  // A warm-up of the run's length may come to less than one update.
  schedule::settings const short_run{.kind = schedule::kind::inverse_root, .warmup_ratio = 0.01};
  CHECK(keel::schedule_factor(short_run, 0, 10, 0.0) == 1.0);
  CHECK(keel::schedule_factor(short_run, 3, 10, 0.0) == 0.5);
}

TEST_CASE("warm_restarts is PyTorch's CosineAnnealingWarmRestarts, and the longest cycles do not overflow") {
  for (long long const warmup : {0LL, 13LL}) {
    for (long long const first : {1LL, 2LL, 10LL, 37LL}) {
      for (long long const factor : {1LL, 2LL, 3LL}) {
        for (double const min : {0.0, 0.05}) {
          schedule::settings const s{
              .kind = schedule::kind::warm_restarts, .warmup = warmup, .cycle = first, .cycle_factor = factor};
          for (std::int64_t update = 0; update < 400; ++update) {
            CAPTURE(warmup, first, factor, min, update);
            REQUIRE(is_close(keel::schedule_factor(s, update, 0, min), after_warmup(update, warmup, [&](std::int64_t t) {
                               return cosine_annealing_warm_restarts(t, first, factor, min);
                             })));
          }
        }
      }
    }
  }
  constexpr long long most = std::numeric_limits<long long>::max();
  schedule::settings const endless{.kind = schedule::kind::warm_restarts, .cycle = 10, .cycle_factor = most / 5};
  CHECK(keel::schedule_factor(endless, 5, 0, 0.0) == Approx(0.5));
  CHECK(keel::schedule_factor(endless, 11, 0, 0.0) == 1.0);
  schedule::settings const long_one{.kind = schedule::kind::warm_restarts, .cycle = most, .cycle_factor = 2};
  CHECK(keel::schedule_factor(long_one, most - 1, 0, 0.0) < 1e-12);
}

namespace {

/// A plateau that judges evaluations, over one group whose highest rate is 1.
struct judged_rate {
  explicit judged_rate(schedule::settings const& settings) : rates(optimizer, settings, 0) {}
  /// The rate after evaluations that came to these values.
  double after(std::vector<double> const& values, bool larger_is_better = false) {
    for (double const value : values) rates.evaluated(value, larger_is_better);
    return rates.rate();
  }
  std::shared_ptr<small_module> model = make_small();
  torch::optim::SGD optimizer{model->parameters(), 1.0};
  keel::lr_schedule rates;
};

constexpr auto two_worse = schedule::plateau<schedule::evaluations<2>>::configured;

}  // namespace

TEST_CASE("a plateau of evaluations lowers the rate after that many in a row without a better one, and counts again") {
  static_assert(schedule::judges_evaluations(two_worse));
  static_assert(!schedule::judges_evaluations(schedule::plateau<>::configured));
  static_assert(!schedule::judges_evaluations(schedule::cosine<schedule::evaluations<2>>::configured));
  judged_rate loss(two_worse);
  CHECK(loss.after({3.0, 2.0, 2.5}) == 1.0);
  CHECK(loss.after({1.9, 1.9}) == 1.0);  // better, and then as good
  CHECK(loss.after({1.95}) == 0.5);
  CHECK(loss.after({2.0}) == 0.5);
  CHECK(loss.after({1.9}) == 0.25);
  CHECK(loss.after({1.8, 1.85}) == 0.25);

  judged_rate accuracy(two_worse);
  CHECK(accuracy.after({0.1, 0.5, 0.4, 0.6, 0.6}, true) == 1.0);
  CHECK(accuracy.after({0.59}, true) == 0.5);

  judged_rate by_a_tenth(
      schedule::plateau<schedule::evaluations<1>, schedule::threshold<0.1>, schedule::min_ratio<0.3>>::configured);
  CHECK(by_a_tenth.after({-10.0, -11.5}) == 1.0);
  CHECK(by_a_tenth.after({-12.0}) == 0.5);  // better, but not by a tenth
  CHECK(by_a_tenth.after({-12.0}) == 0.3);
}

TEST_CASE("an evaluation that is not finite is not a better one, whichever way better is") {
  for (bool const larger_is_better : {false, true}) {
    judged_rate run(two_worse);
    double const infinity = std::numeric_limits<double>::infinity();
    double const good = larger_is_better ? infinity : -infinity;
    CHECK(run.after({NAN}, larger_is_better) == 1.0);
    CHECK(run.after({1.0}, larger_is_better) == 1.0);  // the first finite one is the best so far
    CHECK(run.after({good}, larger_is_better) == 1.0);
    CHECK(run.after({NAN}, larger_is_better) == 0.5);
    CHECK(run.after({larger_is_better ? 1.1 : 0.9, NAN}, larger_is_better) == 0.5);
  }
}

namespace {

struct halves : keel::fills<keel::slot::schedule> {
  static constexpr schedule::settings configured{.kind = schedule::kind::custom};
  static double factor(std::int64_t, std::int64_t) { return 0.5; }
};

}  // namespace

TEST_CASE("the single parts take a policy, and are what its settings make them") {
  keel::grad_scaler const scaler{keel::loss_scale::fixed<8.0>{}};
  CHECK(scaler.factor() == 8.0);
  torch::nn::Linear model(2, 1);
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  keel::lr_schedule rates(optimizer, schedule::linear<schedule::warmup<4_steps>>{}, 10);
  CHECK(rates.rate() == 0.25);
  keel::lr_schedule own(optimizer, halves{});
  CHECK(own.rate() == 0.5);
  keel::spike_guard const spikes{keel::spike::skip<keel::spike::loss_above<3.0>>{}};
  CHECK(spikes.loss_limit() == 3.0);
  keel::nonfinite_guard once{keel::nonfinite::raise{}};
  CHECK_THROWS_AS(once.skipped(keel::reason::nonfinite_loss, "", 1), keel::nonfinite_error);
  keel::attention_scope const attention{keel::attention::math{}};
  CHECK(keel::attention_scope::kind() == keel::attention_kind::math);
}

TEST_CASE("a plateau judges what its recipe says: losses or evaluations, and neither during the warm-up") {
  keel::step_outcome const applied = keel::result::updated{5.0, 1.0, 1.0};
  judged_rate evaluations(schedule::plateau<schedule::evaluations<1>, schedule::warmup<10_steps>>::configured);
  evaluations.after({1.0, 2.0, 3.0});
  for (int i = 0; i < 10; ++i) evaluations.rates.advance(applied);
  CHECK(evaluations.rates.rate() == 1.0);
  CHECK(evaluations.after({3.0}) == 1.0);
  for (int i = 0; i < 3000; ++i) evaluations.rates.advance(applied);
  CHECK(evaluations.rates.rate() == 1.0);
  CHECK(evaluations.after({3.0}) == 0.5);

  judged_rate losses(schedule::plateau<schedule::patience<10_steps>>::configured);
  CHECK(losses.after({1.0, 2.0, 3.0, 4.0}) == 1.0);
  for (int i = 0; i < 20; ++i) losses.rates.advance(applied);
  CHECK(losses.rates.rate() == 0.5);

  judged_rate falling(schedule::inverse_root<schedule::warmup<1_steps>>::configured);
  CHECK(falling.after({1.0, 2.0, 3.0, 4.0}) == 1.0);
}

TEST_CASE("a plateau of evaluations is saved, and a checkpoint of a version without it is read") {
  judged_rate whole(schedule::plateau<schedule::evaluations<3>>::configured);
  whole.after({2.0, 2.5, 2.5, 2.5, 1.0, 1.5, 1.5});
  nlohmann::json state;
  keel::tensor_map tensors;
  keel::state_writer writer(state, tensors);
  whole.rates.visit(writer);

  judged_rate resumed(schedule::plateau<schedule::evaluations<3>>::configured);
  keel::state_reader reader(state, tensors, "a test");
  resumed.rates.visit(reader);
  CHECK(resumed.rates.rate() == 0.5);
  CHECK(resumed.after({1.5}) == 0.25);
  CHECK(whole.after({1.5}) == 0.25);

  REQUIRE(state["plateau"].erase("best_evaluation") == 1);
  REQUIRE(state["plateau"].erase("evaluations_without_better") == 1);
  judged_rate older(schedule::plateau<schedule::evaluations<1>>::configured);
  keel::state_reader older_reader(state, tensors, "a test");
  older.rates.visit(older_reader);
  CHECK(older.rates.rate() == 0.5);
  CHECK(older.after({7.0}) == 0.5);
  CHECK(older.after({7.0}) == 0.25);
}

TEST_CASE("a schedule and an order of a norm in a file are those in C++, and are printed as they were typed") {
  auto const same = [](keel::config const& typed, std::string const& written, char const* schedule_text,
                       char const* clip_text = "none") {
    CAPTURE(written);
    CHECK(keel::parse_config(written) == typed);
    CHECK(std::string(keel::detail::print_slot<keel::slot::schedule>(typed, keel::shown::all).c_str()) == schedule_text);
    CHECK(std::string(keel::detail::print_slot<keel::slot::clip>(typed, keel::shown::set).c_str()) == clip_text);
  };
  using keel::config_of;
  using keel::recipe;
  using namespace keel::schedule;
  same(config_of<recipe<multi_step<milestones<100_steps, 250_steps, 300_steps>, lowered_by<0.2>>>>,
       R"({"schedule": {"multi_step": {"milestones": [100, "250_steps", 300], "lowered_by": 0.2}}})",
       "multi_step, lowered_by 0.2, milestones 100 250 300 steps");
  same(config_of<recipe<step_decay<interval<50_steps>>>>, R"({"schedule": {"step_decay": {"interval": "50_steps"}}})",
       "step_decay, lowered_by 0.1, interval 50 steps");
  same(config_of<recipe<exponential<lowered_by<0.5>, interval<1000_steps>, min_lr<1e-5>>>>,
       R"({"schedule": {"exponential": {"lowered_by": 0.5, "interval": 1000, "min_lr": 1e-5}}})",
       "exponential, min_lr 1e-05, lowered_by 0.5, interval 1000 steps");
  same(config_of<recipe<polynomial<power<2.0>, total<100_steps>>>>,
       R"({"schedule": {"polynomial": {"power": 2, "total": 100}}})", "polynomial, total 100 steps, power 2");
  same(config_of<recipe<inverse_root<warmup<4000_steps>>>>, R"({"schedule": {"inverse_root": {"warmup": 4000}}})",
       "inverse_root, warmup 4000 steps");
  same(config_of<recipe<warm_restarts<cycle<100_steps>, cycle_factor<2>>>>,
       R"({"schedule": {"warm_restarts": {"cycle": 100, "cycle_factor": 2}}})",
       "warm_restarts, cycle 100 steps, cycle_factor 2");
  same(config_of<recipe<plateau<evaluations<3>>>>, R"({"schedule": {"plateau": {"evaluations": 3}}})",
       "plateau, evaluations 3, patience 0 steps, lowered_by 0.5");
  same(config_of<recipe<plateau<>>>, R"({"schedule": "plateau"})", "plateau, patience 1000 steps, lowered_by 0.5");
  same(config_of<recipe<keel::clip::global_norm<1.5, keel::clip::order<1>>>>,
       R"({"clip": {"global_norm": {"limit": 1.5, "order": 1}}})", "constant", "global_norm 1.5, order 1");
  same(config_of<recipe<keel::clip::global_norm<1.5, keel::clip::order<keel::clip::infinity>>>>,
       R"({"clip": {"global_norm": {"limit": 1.5, "order": "infinity"}}})", "constant", "global_norm 1.5, order infinity");
  same(config_of<recipe<keel::clip::global_norm<1.5>>>, R"({"clip": {"global_norm": 1.5}})", "constant", "global_norm 1.5");
  // A patience that is asked for beside evaluations is a second number for one thing (L17), as it is in C++ (D20).
  CHECK(keel::check(keel::parse_config(R"({"schedule": {"plateau": {"evaluations": 3, "patience": 50}}})")).has("L17"));
}

TEST_CASE("milestones and orders in a file that are of another kind are errors that name their place") {
  auto const place_of = [](std::string const& text) {
    try {
      keel::parse_config(text);
    } catch (keel::config_error const& thrown) {
      CHECK(std::string(thrown.what()).ends_with('.'));
      return thrown.path();
    }
    return std::string("nowhere");
  };
  for (char const* const wrong : {"100", "\"100_steps\"", "{\"first\": 100}", "[100.5]", "[\"100\"]", "[[100]]"}) {
    CAPTURE(wrong);
    CHECK(place_of(std::string(R"({"schedule": {"multi_step": {"milestones": )") + wrong + "}}}") ==
          "/schedule/multi_step/milestones");
  }
  for (char const* const wrong : {"\"inf\"", "true", "[1]"}) {
    CAPTURE(wrong);
    CHECK(place_of(std::string(R"({"clip": {"global_norm": {"limit": 1, "order": )") + wrong + "}}}") ==
          "/clip/global_norm/order");
  }
  CHECK(place_of(R"({"clip": {"value": {"limit": 1, "order": 1}}})") == "/clip/value");
  auto const verdict = keel::check(keel::parse_config(R"({"schedule": {"multi_step": {"milestones": [1,2,3,4,5,6,7,8,9]}}})"));
  CHECK(verdict.has("L20"));
}
