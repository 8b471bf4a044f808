// The learning rate belongs to the program, or to the recipe's schedule, and never to both.
#include <torch/optim/schedulers/step_lr.h>

#include <cmath>
#include <limits>
#include <set>

#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;

namespace {

struct plain : keel::recipe<> {};
struct falling : keel::recipe<keel::schedule::linear<keel::schedule::total<10_steps>>> {};
struct saving : keel::recipe<keel::checkpoint::every<5_steps, keel::checkpoint::keep<4>>, keel::determinism::seeded<3>> {};
struct saving_cosine : keel::recipe<keel::checkpoint::every<5_steps, keel::checkpoint::keep<4>>, keel::determinism::seeded<3>,
                                    keel::schedule::cosine<keel::schedule::total<40_steps>>> {};

/// Divides 0 by 0 in its third update.
struct broken_schedule : keel::fills<keel::slot::schedule> {
  static constexpr keel::schedule::settings configured{.kind = keel::schedule::kind::custom};
  static double factor(std::int64_t update, std::int64_t) { return update == 2 ? std::numeric_limits<double>::quiet_NaN() : 1.0; }
};

double rate_of(torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); }
void set_rate(torch::optim::Optimizer& optimizer, double rate) { optimizer.param_groups()[0].options().set_lr(rate); }

/// What a loop by hand makes of the same batches at the same rates.
std::vector<at::Tensor> by_hand(std::vector<double> const& rates) {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    set_rate(optimizer, rates[i]);
    optimizer.zero_grad();
    mean_squared_error(model)(make_pair_batch(i)).backward();
    optimizer.step();
  }
  return copies_of(model->parameters());
}

template <class Call>
std::string message_of(Call const& call) {
  try {
    call();
  } catch (keel::learning_rate_error const& thrown) {
    REQUIRE(thrown.id() == "E18");
    return thrown.what();
  }
  FAIL("no learning_rate_error");
  return {};
}

}  // namespace

TEST_CASE("step_lr_beside_a_recipe_without_a_schedule: keel writes no rate, and reports the one that was used") {
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.1);
  keel::step<plain> step{model, optimizer};
  std::vector<double> used, expected;
  for (std::uint64_t i = 0; i < 6; ++i) {
    expected.push_back(rate_of(optimizer));
    auto const result = step(make_pair_batch(i), mean_squared_error(model));
    used.push_back(result.get<keel::result::updated>().learning_rate);
    scheduler.step();
  }
  CHECK(used == expected);
  CHECK(used.back() == Approx(0.001));
  CHECK(same_bits(copies_of(model->parameters()), by_hand(expected)));
}

TEST_CASE("a rate of zero moves no parameter, and a hook that halves the rate is heard") {
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  keel::step<plain> step{model, optimizer};
  set_rate(optimizer, 0.0);
  auto const before = copies_of(model->parameters());
  for (std::uint64_t i = 0; i < 3; ++i) step(make_pair_batch(i), mean_squared_error(model));
  CHECK(same_bits(copies_of(model->parameters()), before));

  auto const other = make_small();
  torch::optim::SGD sgd(other->parameters(), 0.1);
  keel::trainer<plain> run{other, sgd, quiet({.updates = 3})};
  std::vector<double> used;
  run.on([&](keel::event::update_end const& e) {
    used.push_back(e.result.get<keel::result::updated>().learning_rate);
    set_rate(sgd, rate_of(sgd) / 2);
  });
  run.fit(std::vector<pair_batch>{make_pair_batch(0), make_pair_batch(1), make_pair_batch(2)}, mean_squared_error(other));
  CHECK(used == std::vector<double>{0.1, 0.05, 0.025});
  CHECK(same_bits(copies_of(other->parameters()), by_hand(used)));
}

TEST_CASE("a rate that something else wrote beside a schedule is an error before anything moves") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  keel::step<falling> step{model, optimizer};
  for (std::uint64_t i = 0; i < 3; ++i) step(make_pair_batch(i), mean_squared_error(model));
  auto const before = copies_of(model->parameters());
  auto const image = image_of(*model, optimizer);
  double const own = rate_of(optimizer);
  set_rate(optimizer, 0.5);
  auto const words = message_of([&] { step(make_pair_batch(3), mean_squared_error(model)); });
  CHECK(words.find("group 0 is 0.5 before update 4") != std::string::npos);
  CHECK(same_bits(copies_of(model->parameters()), before));
  // Put back, the run goes on.
  set_rate(optimizer, own);
  CHECK(same_bits(image_of(*model, optimizer), image));
  CHECK(step(make_pair_batch(3), mean_squared_error(model)).is<keel::result::updated>());
}

TEST_CASE("a rate that is negative, infinite or NaN is an error with group and update, and nothing moves", "[rates]") {
  for (double const bad : {-0.1, std::numeric_limits<double>::infinity(), std::nan("")}) {
    auto const model = make_small();
    auto const& all = model->parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{all[0], all[1]}, std::make_unique<torch::optim::AdamWOptions>(0.1));
    groups.emplace_back(std::vector<at::Tensor>{all[2], all[3]}, std::make_unique<torch::optim::AdamWOptions>(0.1));
    keel::adamw optimizer(groups, torch::optim::AdamWOptions(0.1));
    keel::step<plain> step{model, optimizer};
    step(make_pair_batch(0), mean_squared_error(model));
    auto const before = copies_of(model->parameters());
    auto const image = image_of(*model, optimizer);
    optimizer.param_groups()[1].options().set_lr(bad);
    auto const words = message_of([&] { step(make_pair_batch(1), mean_squared_error(model)); });
    CHECK(words.find("group 1 for update 2") != std::string::npos);
    CHECK(same_bits(copies_of(model->parameters()), before));
    optimizer.param_groups()[1].options().set_lr(0.1);
    CHECK(same_bits(image_of(*model, optimizer), image));
  }
}

TEST_CASE("a schedule of one's own that divides 0 by 0 is an error before anything moves, on the host and on a device") {
  struct on_a_device : keel::step_environment {
    bool decides_on_device(at::DeviceType) const override { return true; }
  };
  auto const run = [](auto* environment) {
    struct recipe : keel::recipe<broken_schedule> {};
    auto const model = make_small();
    keel::adamw optimizer(model->parameters(), 0.1);
    keel::step<recipe, std::remove_pointer_t<decltype(environment)>> step{model, optimizer};
    step(make_pair_batch(0), mean_squared_error(model));
    step(make_pair_batch(1), mean_squared_error(model));
    step.settle();
    auto const before = copies_of(model->parameters());
    auto const words = message_of([&] { step(make_pair_batch(2), mean_squared_error(model)); });
    CHECK(words.find("group 0 for update 3 is nan") != std::string::npos);
    CHECK(same_bits(copies_of(model->parameters()), before));
  };
  run(static_cast<keel::step_environment*>(nullptr));
  run(static_cast<on_a_device*>(nullptr));
}

namespace {

struct seen {
  std::vector<at::Tensor> parameters;
  std::vector<double> rates;
  std::string error;
  std::int64_t updates = 0;
};

template <class Recipe>
seen train(std::filesystem::path const& directory, double rate, std::int64_t updates, keel::trainer_options options = {},
           std::function<void(keel::migration&)> const& change = {}, double step_lr_until = 0.0, std::int64_t stop_at = 0) {
  keel::seed<Recipe>();
  auto const model = std::make_shared<small_module>();
  torch::optim::AdamW optimizer(model->parameters(), rate);
  seen found;
  options.run_directory = directory;
  options.updates = updates;
  keel::trainer<Recipe> run{model, optimizer, quiet(std::move(options))};
  if (change) run.migrate({"rate", change});
  run.on([&](keel::event::update_end const& e) {
    found.rates.push_back(e.result.get<keel::result::updated>().learning_rate);
    if (step_lr_until > 0.0) set_rate(optimizer, std::max(step_lr_until, rate_of(optimizer) / 2));
    if (e.update == stop_at) run.request_stop();
  });
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 40; ++i) batches.push_back(make_pair_batch(i));
  try {
    run.fit(batches, mean_squared_error(model));
  } catch (keel::error const& thrown) {
    found.error = thrown.what();
  }
  found.updates = run.updates();
  found.parameters = copies_of(model->parameters());
  return found;
}

}  // namespace

TEST_CASE("a rate that the program changed is resumed as it stood, where the program is built with the same one") {
  scratch_directory const one;
  auto const whole = train<saving>(one / "run", 0.1, 8, {}, {}, 0.01);
  scratch_directory const two;
  train<saving>(two / "run", 0.1, 5, {}, {}, 0.01);
  auto const resumed = train<saving>(two / "run", 0.1, 8, {}, {}, 0.01);
  CHECK(resumed.error.empty());
  CHECK(resumed.rates.front() == whole.rates[5]);
  CHECK(same_bits(resumed.parameters, whole.parameters));
}

TEST_CASE("a resume takes the program's new rate where the program says so by name, and is E03 where it does not") {
  auto const check = [](auto* recipe, double factor) {
    using type = std::remove_pointer_t<decltype(recipe)>;
    scratch_directory const directory;
    train<type>(directory / "run", 0.1, 5);
    CHECK(train<type>(directory / "run", 0.02, 8).error.find("[E03]") == 0);
    auto const accepted = train<type>(directory / "run", 0.02, 8, {.accept = {"lr"}});
    CHECK(accepted.error.empty());
    CHECK(accepted.updates == 8);
    CHECK(accepted.rates.front() == Approx(0.02 * factor));
    // Started again, the new rate is the run's own.
    auto const again = train<type>(directory / "run", 0.02, 10);
    CHECK(again.error.empty());
  };
  check(static_cast<saving*>(nullptr), 1.0);
  check(static_cast<saving_cosine*>(nullptr), keel::schedule_factor(keel::config_of<saving_cosine>.schedule, 5, 40, 0.0));
}

TEST_CASE("accept_changed_recipe takes the program's rate, and a migration may set it") {
  scratch_directory const directory;
  train<saving>(directory / "run", 0.1, 5);
  scratch_directory const other;
  std::filesystem::copy(directory / "run", other / "run", std::filesystem::copy_options::recursive);
  auto const accepted = train<saving>(directory / "run", 0.03, 7, {.accept_changed_recipe = true});
  CHECK(accepted.error.empty());
  CHECK(accepted.rates == std::vector<double>{0.03, 0.03});

  auto const migrated = train<saving>(other / "run", 0.03, 7, {}, [](keel::migration& old) { old.set_lr(0.03); });
  CHECK(migrated.error.empty());
  CHECK(migrated.rates == std::vector<double>{0.03, 0.03});
  CHECK(same_bits(migrated.parameters, accepted.parameters));
  // The migration of a program that is started again finds nothing to do.
  auto const again = train<saving>(other / "run", 0.03, 9, {}, [](keel::migration& old) { old.set_lr(0.03); });
  CHECK(again.error.empty());
  auto const wrong = train<saving>(other / "run", 0.03, 9, {}, [](keel::migration& old) { old.set_lr(3, 0.03); });
  CHECK(wrong.error.find("[E04]") == 0);
}

TEST_CASE("resume_at restarts the run at an older checkpoint with a lower rate, once, and loses nothing that was saved") {
  scratch_directory const directory;
  auto const first = train<saving>(directory / "run", 0.1, 20);
  auto const lines = read_lines(directory / "run/metrics.jsonl").size();
  auto const restarted = train<saving>(directory / "run", 0.01, 12, {.resume_at = 10});
  CHECK(restarted.error == "");
  CHECK(restarted.updates == 12);
  CHECK(restarted.rates == std::vector<double>{0.01, 0.01});
  // What was given up stands aside, and the record goes on behind a mark.
  CHECK(std::filesystem::exists(directory / "run/checkpoints/abandoned-step-000000015"));
  CHECK(std::filesystem::exists(directory / "run/checkpoints/abandoned-step-000000020"));
  CHECK_FALSE(std::filesystem::exists(directory / "run/checkpoints/step-000000020"));
  auto const after = read_lines(directory / "run/metrics.jsonl");
  REQUIRE(after.size() == lines + 3);
  CHECK(nlohmann::json::parse(after[lines])["restarted"] == 10);
  CHECK(nlohmann::json::parse(after[lines])["abandoned"] == 10);
  // The same program, started again after a kill, goes on from where it was.
  auto const again = train<saving>(directory / "run", 0.01, 15, {.resume_at = 10});
  CHECK(again.error.empty());
  CHECK(again.updates == 15);
  CHECK(again.rates.size() == 3);
  // Another rate is another restart.
  auto const lower = train<saving>(directory / "run", 0.001, 12, {.resume_at = 10});
  CHECK(lower.rates == std::vector<double>{0.001, 0.001});
  // The reference: the first run's ten updates, and on at the lower rate.
  scratch_directory const straight;
  train<saving>(straight / "run", 0.1, 10);
  auto const expected = train<saving>(straight / "run", 0.001, 12, {.accept = {"lr"}});
  CHECK(same_bits(lower.parameters, expected.parameters));
}

TEST_CASE("resume_at names the checkpoints that there are, where there is none of that update") {
  scratch_directory const directory;
  train<saving>(directory / "run", 0.1, 10);
  auto const found = train<saving>(directory / "run", 0.1, 12, {.resume_at = 7});
  CHECK(found.error.find("[E12]") == 0);
  CHECK(found.error.find("Existing checkpoints: 5, 10.") != std::string::npos);
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  CHECK_THROWS_AS((keel::trainer<plain>{model, optimizer, quiet({.resume_at = 7})}), keel::error);
}

TEST_CASE("one_cycle peaks with the last update of its warm-up and ends at its floor; a warm-up of 0.29 of 100 has 29 updates") {
  namespace schedule = keel::schedule;
  auto const cycle = schedule::one_cycle<schedule::min_ratio<0.01>>::configured;
  CHECK(keel::schedule_factor(cycle, 0, 100, 0.01) == Approx(0.04));
  CHECK(keel::schedule_factor(cycle, 28, 100, 0.01) < 1.0);
  CHECK(keel::schedule_factor(cycle, 29, 100, 0.01) == 1.0);
  CHECK(keel::schedule_factor(cycle, 30, 100, 0.01) < 1.0);
  CHECK(keel::schedule_factor(cycle, 98, 100, 0.01) > 0.01);
  CHECK(keel::schedule_factor(cycle, 99, 100, 0.01) == Approx(0.01));
  static_assert(schedule::warmup_updates(schedule::cosine<schedule::warmup_ratio<0.29>>::configured, 100) == 29);
  for (long long percent = 1; percent < 100; ++percent) {
    schedule::settings const ratio{.kind = schedule::kind::cosine, .warmup_ratio = static_cast<double>(percent) / 100.0};
    CHECK(schedule::warmup_updates(ratio, 100) == percent);
    CHECK(schedule::warmup_updates(ratio, 10'000'000) == percent * 100'000);
  }
}

TEST_CASE("a restart at an older checkpoint gives a run that had used up its rollbacks the recipe's number of them again") {
  struct rolls_back : keel::recipe<keel::nonfinite::rollback<2, keel::nonfinite::attempts<1>>,
                                   keel::checkpoint::every<4_steps, keel::checkpoint::keep<6>>, keel::determinism::seeded<3>> {};
  scratch_directory const directory;
  // Bad batches come in pairs, the second pair too late for the one rollback that the recipe allows.
  auto const go = [&](std::set<std::int64_t> const& bad, keel::trainer_options options) {
    keel::seed<rolls_back>();
    auto const model = std::make_shared<small_module>();
    torch::optim::AdamW optimizer(model->parameters(), 0.01);
    options.run_directory = directory / "run";
    options.updates = 24;
    keel::trainer<rolls_back> run{model, optimizer, quiet(std::move(options))};
    auto const batches = [](std::int64_t epoch) {
      return ranges::views::iota(60 * epoch, 60 * epoch + 60) |
             ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
    };
    auto const loss_of = [&](keel::row_numbers const& row) {
      at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(row[0])));
      return bad.count(row[0]) > 0 ? loss * NAN : loss;
    };
    keel::outcome const ended = run.fit(batches, loss_of);
    return std::pair(ended.gave_up() ? ended.gave_up()->detail : std::string(), run.rollbacks());
  };
  std::set<std::int64_t> const bad{9, 10, 15, 16};
  auto const first = go(bad, {});
  CHECK(first.first.find("the run rolled back once") != std::string::npos);
  auto const second = go({9, 10}, {.resume_at = 4});
  CHECK(second.first == "");
  CHECK(second.second == 2);
}

TEST_CASE("a resume without the schedule that the run had goes on at the program's rate, not at the last that the schedule wrote") {
  scratch_directory const directory;
  train<saving_cosine>(directory / "run", 0.1, 35);
  auto const resumed = train<saving>(directory / "run", 0.1, 37, {.accept = {"schedule"}});
  CHECK(resumed.error == "");
  CHECK(resumed.rates == std::vector<double>{0.1, 0.1});
}

TEST_CASE("a rate that is set after the step was built and before its first update is what the schedule multiplies") {
  auto const model = make_small();
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  keel::step<falling> step{model, optimizer};
  set_rate(optimizer, 0.2);
  auto const first = step(make_pair_batch(0), mean_squared_error(model));
  CHECK(first.get<keel::result::updated>().learning_rate == 0.2);
  auto const second = step(make_pair_batch(1), mean_squared_error(model));
  CHECK(second.get<keel::result::updated>().learning_rate == Approx(0.2 * 0.9));
}

TEST_CASE("a rollback to a checkpoint from before an accepted change of the rate goes back, and keeps the new rate") {
  struct rolls_back : keel::recipe<keel::nonfinite::rollback<3>, keel::checkpoint::every<4_steps, keel::checkpoint::keep<6>>,
                                   keel::determinism::seeded<3>> {};
  scratch_directory const directory;
  auto const go = [&](double rate, std::int64_t updates, std::int64_t bad, keel::trainer_options options) {
    keel::seed<rolls_back>();
    auto const model = std::make_shared<small_module>();
    torch::optim::AdamW optimizer(model->parameters(), rate);
    options.run_directory = directory / "run";
    options.updates = updates;
    keel::trainer<rolls_back> run{model, optimizer, quiet(std::move(options))};
    auto const batches = [](std::int64_t epoch) {
      return ranges::views::iota(60 * epoch, 60 * epoch + 60) |
             ranges::views::transform([](std::int64_t i) { return keel::row_numbers{i}; });
    };
    std::string error;
    try {
      run.fit(batches, [&](keel::row_numbers const& row) {
        at::Tensor const loss = mean_squared_error(model)(make_pair_batch(static_cast<std::uint64_t>(row[0])));
        return row[0] >= bad && row[0] < bad + 3 ? loss * NAN : loss;
      });
    } catch (keel::error const& thrown) {
      error = thrown.what();
    }
    return std::tuple(error, run.rollbacks(), rate_of(optimizer));
  };
  go(0.02, 8, 100, {});
  // Accepted once; then the program is started again without saying so, and goes back to a checkpoint of the old rate.
  CHECK(std::get<0>(go(0.01, 10, 100, {.accept = {"lr"}})) == "");
  auto const [error, rollbacks, rate] = go(0.01, 16, 10, {});
  CHECK(error == "");
  CHECK(rollbacks == 1);
  CHECK(rate == 0.01);
}

TEST_CASE("step_decay in a recipe trains as torch::optim::StepLR beside one without, in every bit") {
  struct falls : keel::recipe<keel::schedule::step_decay<keel::schedule::interval<2_steps>, keel::schedule::lowered_by<0.5>>> {
  };
  auto const ours = make_small(), theirs = make_small();
  torch::optim::SGD optimizer(ours->parameters(), 0.1), other(theirs->parameters(), 0.1);
  torch::optim::StepLR scheduler(other, /*step_size=*/2, /*gamma=*/0.5);
  scheduler.step();  // PyTorch's does so in its constructor, LibTorch's does not
  keel::step<falls> step{ours, optimizer};
  keel::step<plain> beside{theirs, other};
  for (std::uint64_t i = 0; i < 9; ++i) {
    step(make_pair_batch(i), mean_squared_error(ours));
    beside(make_pair_batch(i), mean_squared_error(theirs));
    scheduler.step();
    REQUIRE(same_bits(copies_of(ours->parameters()), copies_of(theirs->parameters())));
  }
  CHECK(rate_of(optimizer) == 0.1 * 0.0625);
}

TEST_CASE("milestones count applied updates, and a resumed run goes on between them as one that was not stopped") {
  using namespace keel::schedule;
  struct falls : keel::recipe<multi_step<milestones<2_steps, 4_steps, 6_steps>, lowered_by<0.5>>,
                              keel::checkpoint::every<5_steps, keel::checkpoint::keep<4>>, keel::determinism::seeded<3>> {};
  scratch_directory const one;
  auto const whole = train<falls>(one / "run", 0.1, 8);
  CHECK(whole.rates == std::vector<double>{0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125});
  scratch_directory const two;
  train<falls>(two / "run", 0.1, 8, {}, {}, 0.0, 5);
  auto const resumed = train<falls>(two / "run", 0.1, 8);
  CHECK(resumed.rates == std::vector<double>{0.025, 0.0125, 0.0125});
  CHECK(same_bits(resumed.parameters, whole.parameters));

  struct skips : keel::recipe<multi_step<milestones<1_steps>, lowered_by<0.5>>, keel::nonfinite::skip<5>> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<skips> step{model, optimizer};
  auto const skipped = [&](pair_batch const& batch) { return mean_squared_error(model)(batch) * NAN; };
  for (std::uint64_t i = 0; i < 3; ++i) REQUIRE(step(make_pair_batch(i), skipped).is<keel::result::skipped>());
  CHECK(step.learning_rate() == 0.1);
  REQUIRE(step(make_pair_batch(4), mean_squared_error(model)).is<keel::result::updated>());
  CHECK(step.learning_rate() == 0.05);
}

TEST_CASE("a program that owns its loop gives a plateau its evaluations, and the next update has the lower rate") {
  using namespace keel::schedule;
  struct judged : keel::recipe<plateau<evaluations<2>>, keel::accept<"L24">> {};
  auto const model = make_small();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  keel::step<judged> step{model, optimizer};
  std::vector<double> used;
  for (double const evaluation : {1.0, 1.5, 1.5, 0.5}) {
    auto const result = step(make_pair_batch(used.size()), mean_squared_error(model));
    used.push_back(result.get<keel::result::updated>().learning_rate);
    step.schedule().evaluated(evaluation, /*larger_is_better=*/false);
  }
  CHECK(used == std::vector<double>{0.1, 0.1, 0.1, 0.05});
}
