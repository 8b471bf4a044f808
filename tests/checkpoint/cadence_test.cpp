// When a run saves, what stays, and what it evaluates.
#include "../support.hpp"

#include <csignal>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <keel/checkpoint/cadence.hpp>

using namespace keel_test;
using namespace keel::literals;

namespace {

namespace checkpoint = keel::checkpoint;

/// A clock that a test moves.
struct hand_clock : keel::time_source {
  static inline duration passed{};
  time_point now() const override { return time_point(passed); }
  static void pass(double seconds) { passed += std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)); }
};
auto const by_hand = std::make_shared<hand_clock>();

std::vector<pair_batch> one_an_epoch(std::int64_t epoch) { return {make_pair_batch(static_cast<std::uint64_t>(epoch))}; }

/// Updates at which checkpoints are there.
std::vector<std::int64_t> kept(std::filesystem::path const& directory) {
  return keel::checkpoint_store(directory / "checkpoints").updates();
}

template <class Recipe>
struct training {
  training(std::filesystem::path const& directory, std::int64_t updates, std::shared_ptr<keel::time_source const> clock = nullptr)
      : run(model, optimizer, quiet({.run_directory = directory, .updates = updates, .own_clock = std::move(clock)})) {
    run.on([this](keel::event::checkpoint_saved const& e) { saved.push_back(e.update); });
  }
  keel::outcome fit() { return run.fit(one_an_epoch, mean_squared_error(model)); }
  std::shared_ptr<small_module> model = make_small();
  torch::optim::AdamW optimizer{model->parameters(), 0.01};
  keel::trainer<Recipe> run;
  std::vector<std::int64_t> saved;
};

}  // namespace

TEST_CASE("Daly's interval is the one that loses the least time, by a search over the exact expectation") {
  // Daly 2006: expected time of a run of exponential failures, per unit of work; restart apart.
  auto const lost = [](double interval, double cost, double mean) { return mean * std::expm1((interval + cost) / mean) / interval; };
  for (double const mean : {60.0, 3600.0, 86400.0}) {
    for (double const cost : {0.01, 0.5, 5.0}) {
      double best = 1.0;
      for (double at = 0.01; at < 3.0 * mean; at *= 1.001) {
        if (lost(at, cost, mean) < lost(best, cost, mean)) best = at;
      }
      double const ours = keel::daly_interval(cost, mean);
      CHECK(ours == Approx(best).epsilon(0.01));
      CHECK(lost(ours, cost, mean) == Approx(lost(best, cost, mean)).epsilon(1e-4));
    }
  }
  CHECK(keel::daly_interval(200.0, 60.0) == 60.0);
}

TEST_CASE("young_daly saves after the first update, measures, and adapts: a slower disk means fewer saves, and never more than can be written") {
  keel::checkpoint_cadence cadence(checkpoint::young_daly<checkpoint::mean_time_between_failures<1_h>>::configured, *by_hand);
  cadence.restart();
  CHECK_FALSE(cadence.is_due(0, false));
  CHECK(cadence.is_due(1, true));
  cadence.restart();
  cadence.measured(2.0, 2.0);
  double const quick = *cadence.interval();
  CHECK(quick == Approx(keel::daly_interval(2.0, 3600.0)));
  hand_clock::pass(quick - 1.0);
  CHECK_FALSE(cadence.is_due(100, true));
  hand_clock::pass(2.0);
  CHECK(cadence.is_due(101, true));
  for (int i = 0; i < 50; ++i) cadence.measured(20.0, 20.0);
  CHECK(*cadence.interval() == Approx(keel::daly_interval(20.0, 3600.0)).epsilon(0.01));
  for (int i = 0; i < 50; ++i) cadence.measured(0.001, 300.0);
  CHECK(*cadence.interval() >= 300.0);
}

TEST_CASE("a run under young_daly, and one that saves by the minute") {
  scratch_directory const directory;
  struct daly : keel::recipe<checkpoint::young_daly<checkpoint::mean_time_between_failures<1_h>>> {};
  training<daly> first(directory / "daly", 6);
  first.fit();
  REQUIRE(!first.saved.empty());
  CHECK(first.saved.front() == 1);
  CHECK(first.saved.back() == 6);
  struct by_the_minute : keel::recipe<checkpoint::every<1_min, checkpoint::keep<9>>> {};
  training<by_the_minute> second(directory / "minute", 10, by_hand);
  second.run.on([](keel::event::update_end const&) { hand_clock::pass(25.0); });
  second.fit();
  CHECK(second.saved == std::vector<std::int64_t>{3, 6, 9, 10});
}

TEST_CASE("keep_every: its multiples stay beside the newest, and what was saved out of turn gives way") {
  scratch_directory const directory;
  struct recipe : keel::recipe<checkpoint::every<2_steps, checkpoint::keep<2>, checkpoint::keep_every<6_steps>>> {};
  training<recipe>(directory / "run", 17).fit();
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{6, 12, 14, 16, 17});
  training<recipe>(directory / "run", 20).fit();
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{6, 12, 18, 20});
}

TEST_CASE("three preemptions in a row take no checkpoint away that a rollback may need") {
  scratch_directory const directory;
  struct recipe : keel::recipe<checkpoint::every<4_steps, checkpoint::keep<2>>> {};
  for (int i = 0; i < 3; ++i) {
    training<recipe> one(directory / "run", 20);
    std::int64_t const until = 9 + i;
    one.run.on([&](keel::event::update_end const& e) {
      if (e.update == until) one.run.request_stop();
    });
    one.fit();
  }
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{4, 8, 11});
}

TEST_CASE("a file that appears asks for a checkpoint, and goes") {
  scratch_directory const directory;
  struct recipe : keel::recipe<checkpoint::every<100_steps>> {};
  training<recipe> one(directory / "run", 10, by_hand);
  one.run.on([&](keel::event::update_end const& e) {
    hand_clock::pass(2.0);
    if (e.update == 4) write_file(directory / "run/save", "");
  });
  one.fit();
  CHECK(one.saved == std::vector<std::int64_t>{4, 10});
  CHECK_FALSE(std::filesystem::exists(directory / "run/save"));
}

TEST_CASE("SIGUSR2 asks for a checkpoint and the run goes on; a program that handles it keeps it") {
  scratch_directory const directory;
  struct recipe : keel::recipe<checkpoint::every<100_steps>> {};
  training<recipe> one(directory / "run", 10);
  one.run.on([&](keel::event::update_end const& e) {
    if (e.update == 3) std::raise(SIGUSR2);
  });
  CHECK(one.fit().is<keel::result::finished>());
  CHECK(one.saved == std::vector<std::int64_t>{3, 10});
  static int heard;
  heard = 0;
  auto const before = std::signal(SIGUSR2, [](int) { ++heard; });
  training<recipe> two(directory / "other", 5);
  two.run.on([&](keel::event::update_end const& e) {
    if (e.update == 3) std::raise(SIGUSR2);
  });
  two.fit();
  std::signal(SIGUSR2, before);
  CHECK(heard == 1);
  CHECK(two.saved == std::vector<std::int64_t>{5});
}

TEST_CASE("grace_shorter_than_a_save: said once, after the save that shows it and before a signal comes") {
  scratch_directory const directory;
  struct enough : keel::recipe<checkpoint::every<2_steps>, keel::timeout::set<keel::timeout::grace<60_s>>> {};
  training<enough> one(directory / "enough", 6, by_hand);
  one.run.on([](keel::event::update_end const&) { hand_clock::pass(40.0); });
  one.fit();
  CHECK(read_file(directory / "enough/events.jsonl").find("grace_too_short") == std::string::npos);
  training<enough> two(directory / "short", 6, by_hand);
  two.run.on([](keel::event::micro_batch_end const&) { hand_clock::pass(70.0); });
  two.fit();
  std::string const events = read_file(directory / "short/events.jsonl");
  CHECK(events.find("\"grace_too_short\",\"update\":2") != std::string::npos);
  CHECK(events.find("grace_too_short", events.find("grace_too_short") + 1) == std::string::npos);
  CHECK(events.find("the grace period after a signal is 60 s, but an update and its checkpoint take 70") != std::string::npos);
}

TEST_CASE("the best by training loss is the save with the lowest mean since the one before, and stays") {
  scratch_directory const directory;
  struct recipe : keel::recipe<checkpoint::every<2_steps, checkpoint::keep<1>, checkpoint::keep_best, checkpoint::by_training_loss>> {};
  auto const go = [&](std::string const& name, int stop_after) {
    auto const model = make_small();
    torch::optim::SGD optimizer(model->parameters(), 0.0);
    keel::trainer<recipe> run{model, optimizer, quiet({.run_directory = directory / name, .updates = 12})};
    int windows = 0;
    run.on([&](keel::event::update_end const&) {
      if (++windows == stop_after) run.request_stop();
    });
    // Means of two: 5, 4, 1, 3, 6, 2.
    std::vector<double> const losses{5, 5, 6, 2, 1, 1, 2, 4, 6, 6, 2, 2};
    run.fit(one_an_epoch, [&](pair_batch const& batch) {
      return mean_squared_error(model)(batch) * 0.0 + losses[static_cast<std::size_t>(run.updates())];
    });
  };
  go("run", 100);
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{6, 12});
  for (int i = 0; i < 12; ++i) go("stopped", 1);
  CHECK(kept(directory / "stopped") == std::vector<std::int64_t>{6, 12});
}

TEST_CASE("a best that could not be saved is none: the one from before stays") {
  scratch_directory const directory;
  keel::best_checkpoint best(checkpoint::every<2_steps, checkpoint::keep_best, checkpoint::by_training_loss>::configured, {});
  best.updated(3.0);
  best.judge(keel::world_of_one{}, 2);
  CHECK(best.keeps() == std::vector<std::int64_t>{2});
  best.updated(1.0);
  best.judge(keel::world_of_one{}, 4);
  CHECK(best.keeps() == std::vector<std::int64_t>{4});
  best.revert(4);
  CHECK(best.keeps() == std::vector<std::int64_t>{2});
  best.updated(NAN);
  best.judge(keel::world_of_one{}, 6);
  CHECK(best.keeps() == std::vector<std::int64_t>{2});
}

TEST_CASE("evaluations come at their interval, on the data that was named, bounded, and the best of them is saved at once") {
  scratch_directory const directory;
  struct recipe : keel::recipe<checkpoint::every<100_steps, checkpoint::keep<1>, checkpoint::on_best, checkpoint::by_evaluation_loss>,
                               keel::evaluation::every<3_steps, keel::evaluation::batches<2>>> {};
  training<recipe> one(directory / "run", 15);
  int evaluated = 0;
  std::vector<double> const losses{5, 4, 6, 3, 7};
  one.run.evaluate_on(std::vector<pair_batch>(5, make_pair_batch(1)), [&](pair_batch const& batch) {
    double const loss = losses[static_cast<std::size_t>(evaluated++ / 2)];
    return mean_squared_error(one.model)(batch) * 0.0 + loss;
  });
  one.fit();
  CHECK(evaluated == 10);
  // The bound is of the recipe's own evaluations.
  int asked_for = 0;
  one.run.evaluate(std::vector<pair_batch>(5, make_pair_batch(1)), [&](pair_batch const& batch) { return ++asked_for, mean_squared_error(one.model)(batch); });
  CHECK(asked_for == 5);
  CHECK(one.saved == std::vector<std::int64_t>{3, 6, 12, 15});
  CHECK(kept(directory / "run") == std::vector<std::int64_t>{12, 15});
  auto const state = keel::read_checkpoint(directory / "run/checkpoints/step-000000012").state;
  CHECK(state["run"]["best"]["best"]["loss"] == 3.0);
}

TEST_CASE("a run ends after so many evaluations without a better loss, also over resumes") {
  struct recipe : keel::recipe<checkpoint::every<2_steps>, keel::evaluation::every<2_steps, keel::evaluation::early_stop<3>>> {};
  for (int const stop_after : {100, 1, 3}) {
    scratch_directory const directory;
    std::int64_t ended = 0;
    for (int i = 0; i < 30; ++i) {
      training<recipe> one(directory / "run", 30);
      int windows = 0;
      one.run.on([&](keel::event::update_end const&) {
        if (++windows == stop_after) one.run.request_stop();
      });
      // Better until update 6.
      one.run.evaluate_on(std::vector<pair_batch>{make_pair_batch(1)}, [&](pair_batch const& batch) {
        return mean_squared_error(one.model)(batch) * 0.0 + std::max(0.0, 7.0 - static_cast<double>(one.run.updates()));
      });
      auto const result = one.fit();
      ended = one.run.updates();
      if (result.is<keel::result::finished>()) break;
    }
    CHECK(ended == 14);
    training<recipe> again(directory / "run", 30);
    again.run.evaluate_on(std::vector<pair_batch>{make_pair_batch(1)}, mean_squared_error(again.model));
    CHECK(again.fit().is<keel::result::finished>());
    CHECK(again.run.updates() == 14);
    CHECK(read_file(directory / "run/events.jsonl").find("\"stopped_early\",\"update\":14") != std::string::npos);
  }
}

TEST_CASE("a recipe that evaluates without data to evaluate on is an error before the first update") {
  scratch_directory const directory;
  struct recipe : keel::recipe<keel::evaluation::every<3_steps>> {};
  training<recipe> one(directory / "run", 5);
  try {
    one.fit();
    FAIL("nothing was evaluated, and nobody said so");
  } catch (keel::error const& thrown) {
    CHECK(thrown.id() == "E12");
    CHECK(std::string(thrown.what()).find("evaluate_on") != std::string::npos);
  }
}
