// Numbers that change while a run goes on: accumulation that grows, a clip limit that moves.
#include "../support.hpp"

using namespace keel_test;
using namespace keel::literals;
using keel::given;

namespace {

namespace checkpoint = keel::checkpoint;

struct grows : keel::recipe<keel::accumulate<given>, keel::clip::global_norm<given>,
                            checkpoint::every<2_steps, checkpoint::keep<20>>, keel::determinism::seeded<3>> {};
struct grows_a_part : keel::recipe<keel::accumulate<given>> {};
struct rolls
    : keel::recipe<keel::accumulate<given>, checkpoint::every<2_steps, checkpoint::keep<20>>, keel::nonfinite::rollback<1>> {};
struct saves_runs : keel::recipe<checkpoint::every<2_steps>, keel::determinism::seeded<3>> {};

std::vector<pair_batch> batches_of(std::int64_t count) {
  std::vector<pair_batch> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(make_pair_batch(static_cast<std::uint64_t>(i), 4));
  return all;
}

// Eight micro-batches an epoch: in the epochs 0 to 4 of 1, 2, 4, 4 and 2 in an update, and limits that move with them.
constexpr std::int64_t accumulated[] = {1, 2, 4, 4, 2};
constexpr double limits[] = {1e9, 1e9, 1e9, 0.05, 0.02};

template <class Model>
struct trained {
  Model model = std::make_shared<small_module>();
  torch::optim::AdamW optimizer{model->parameters(), torch::optim::AdamWOptions(0.05)};
};

std::vector<at::Tensor> train(std::filesystem::path const& directory, std::int64_t until) {
  at::manual_seed(1);
  trained<std::shared_ptr<small_module>> all;
  keel::trainer<grows> run{all.model,
                           all.optimizer,
                           {.clip = 1e9, .accumulate = 1},
                           quiet({.run_directory = directory, .epochs = 5, .batches_per_epoch = 8})};
  run.on([&](keel::event::epoch_begin const& begin) {
    run.change({.clip = limits[begin.epoch], .accumulate = accumulated[begin.epoch]});
  });
  run.on([&](keel::event::update_end const& end) {
    if (end.update == until) run.request_stop();
  });
  run.fit(batches_of(8), mean_squared_error(all.model));
  return copies_of(all.model->parameters());
}

}  // namespace

TEST_CASE("accumulation that grows and a limit that moves train as by hand, and a resume knows them wherever it is") {
  at::manual_seed(1);
  trained<std::shared_ptr<small_module>> hand;
  auto const batches = batches_of(8);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::int64_t const count = accumulated[epoch];
    for (std::int64_t i = 0; i < 8; ++i) {
      if (i % count == 0) hand.optimizer.zero_grad();
      mean_squared_error(hand.model)(batches[static_cast<std::size_t>(i)]).backward();
      if ((i + 1) % count != 0) continue;
      for (at::Tensor const& one : hand.model->parameters()) one.mutable_grad().mul_(1.0 / static_cast<double>(count));
      hand.optimizer.step();
    }
  }
  scratch_directory const directory;
  CHECK(same_bits(train(directory / "unclipped", 8 + 4 + 2), copies_of(hand.model->parameters())));
  auto const whole = train(directory / "whole", 99);
  std::string const events = read_file(directory / "whole" / "events.jsonl");
  CHECK(events.find("accumulate 1 -> 2") != std::string::npos);
  CHECK(events.find("accumulate 4 -> 2, clip 0.05 -> 0.02") != std::string::npos);
  for (std::int64_t const at : {3, 7, 8, 9, 12, 13, 14, 15, 17}) train(directory / "cut", at);
  CHECK(same_bits(whole, train(directory / "cut", 99)));
  // More of them to an update, and the five epochs are all trained.
  CHECK(read_lines(directory / "whole" / "metrics.jsonl").size() == 8 + 4 + 2 + 2 + 4);
}

TEST_CASE("numbers that cannot change, are not open or break a rule are errors, and nothing has changed then") {
  scratch_directory const directory;
  trained<std::shared_ptr<small_module>> all;
  keel::trainer<grows> run{
      all.model, all.optimizer, {.clip = 1.0, .accumulate = 2}, quiet({.run_directory = directory / "run", .updates = 9})};
  auto const loss_of = mean_squared_error(all.model);
  auto const batch = make_pair_batch(1);
  CHECK_THROWS_WITH(run.change({.ema = 0.9}), Catch::Matchers::Contains("[E22]") && Catch::Matchers::Contains(".ema cannot change"));
  CHECK_THROWS_WITH(run.change({.accumulate = 1.5}), Catch::Matchers::Contains("[E22]"));
  CHECK_THROWS_WITH(run.change({.accumulate = 0}),
                    Catch::Matchers::Contains("[A01]") || Catch::Matchers::Contains("accumulate"));
  CHECK_THROWS_AS(run.change({.clip = -1.0}), keel::recipe_error);
  CHECK(run.step(batch, loss_of).accumulated()->needed == 2);
  CHECK_THROWS_WITH(run.change({.accumulate = 3}), Catch::Matchers::Contains("[E12]"));
  CHECK(run.step(batch, loss_of).updated());
  run.change({.accumulate = 3});
  CHECK(run.step(batch, loss_of).accumulated()->needed == 3);
  run.step(batch, loss_of);
  CHECK(run.step(batch, loss_of).updated());
}

TEST_CASE("a resume with another number has the program's, unless the run had changed it") {
  scratch_directory const directory;
  auto const counts = [&](std::string const& name, std::int64_t given_count, std::int64_t changed, std::int64_t updates) {
    trained<std::shared_ptr<small_module>> all;
    keel::trainer<grows> run{all.model,
                             all.optimizer,
                             {.clip = 1.0, .accumulate = given_count},
                             quiet({.run_directory = directory / name, .updates = updates, .accept_changed_recipe = true})};
    run.resume();
    if (changed > 0) run.change({.accumulate = changed});
    run.fit(batches_of(60), mean_squared_error(all.model));
    return run.cursor().consumed;
  };
  CHECK(counts("never", 2, 0, 4) == 8);
  CHECK(counts("never", 3, 0, 8) == 8 + 12);
  CHECK(counts("changed", 2, 4, 4) == 16);
  CHECK(counts("changed", 2, 0, 8) == 16 + 16);
}

TEST_CASE("a rollback has the numbers of its checkpoint again") {
  scratch_directory const directory;
  trained<std::shared_ptr<small_module>> all;
  keel::trainer<rolls> run{
      all.model, all.optimizer, {.accumulate = 1}, quiet({.run_directory = directory / "run", .updates = 8})};
  std::vector<std::int64_t> counts;
  std::int64_t taken = 0, spoiled = 0;
  auto const spoils = [&](pair_batch const& batch) {
    at::Tensor const loss = mean_squared_error(all.model)(batch);
    return spoiled == 1 ? loss * NAN : loss;
  };
  auto const batches = batches_of(40);
  while (run.updates() < 8) {
    bool const changes = run.updates() == 5 && counts.empty();
    if (changes) {
      run.change({.accumulate = 2});
      spoiled = 1;
    }
    auto outcome = run.step(batches[static_cast<std::size_t>(taken++)], spoils);
    if (auto const* const more = outcome.accumulated()) counts.push_back(more->needed);
    if (run.rollbacks() > 0) spoiled = 2;
    REQUIRE(taken < 40);
  }
  CHECK(run.rollbacks() == 1);
  // Behind it each micro-batch is an update again.
  CHECK(counts == std::vector<std::int64_t>{2});
}

TEST_CASE("a part changes its numbers, and its run resumes with them") {
  auto const train_parts = [](std::filesystem::path const& directory, std::int64_t until) {
    at::manual_seed(1);
    trained<std::shared_ptr<small_module>> a, b;
    keel::run<saves_runs> run{quiet({.run_directory = directory})};
    keel::part<keel::recipe<>> plain{run, "plain", a.model, a.optimizer};
    keel::part<grows_a_part> growing{run, "growing", b.model, b.optimizer, {.accumulate = 1}};
    run.on([&](keel::event::epoch_begin const& begin) { growing.change({.accumulate = accumulated[begin.epoch]}); });
    for (auto& batch : run.epochs(batches_of(8), 3)) {
      plain.update(batch, mean_squared_error(a.model));
      growing.update(batch, mean_squared_error(b.model));
      if (run.cursor().consumed + 1 == until) run.request_stop();
    }
    run.finish();
    CHECK(growing.updates() <= 8 + 4 + 2);
    auto all = copies_of(a.model->parameters());
    for (at::Tensor const& one : copies_of(b.model->parameters())) all.push_back(one);
    return all;
  };
  scratch_directory const directory;
  auto const whole = train_parts(directory / "whole", 99);
  CHECK(read_file(directory / "whole" / "events.jsonl").find("growing: accumulate 1 -> 2") != std::string::npos);
  for (std::int64_t const at : {5, 8, 10, 16, 20}) train_parts(directory / "cut", at);
  CHECK(same_bits(whole, train_parts(directory / "cut", 99)));
}
