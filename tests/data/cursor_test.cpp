#include "../support.hpp"

using namespace keel_test;

TEST_CASE("the cursor after an exception stands before the window that was dropped, and after one that was applied") {
  struct in_three : keel::recipe<keel::accumulate<3>> {};
  auto const model = make_small();
  keel::adamw optimizer(model->parameters(), 0.01);
  keel::trainer<in_three> run{model, optimizer, quiet()};
  auto const loss = mean_squared_error(model);
  auto const throws = [](pair_batch const&) -> at::Tensor { throw std::runtime_error("a loss"); };
  for (int i = 0; i < 3; ++i) run.step(make_pair_batch(1), loss);
  run.step(make_pair_batch(1), loss);
  CHECK(run.cursor().consumed == 4);
  CHECK_THROWS_AS(run.step(make_pair_batch(1), throws), std::runtime_error);
  CHECK(run.cursor().consumed == 3);
  bool angry = true;
  run.on([&](keel::event::update_end const&) {
    if (std::exchange(angry, false)) throw std::runtime_error("a hook");
  });
  for (int i = 0; i < 2; ++i) run.step(make_pair_batch(1), loss);
  CHECK_THROWS_AS(run.step(make_pair_batch(1), loss), std::runtime_error);
  CHECK(run.updates() == 2);
  CHECK(run.cursor().consumed == 6);
  // A flush takes nothing, whether the update that it made is followed by an exception or it never came to one.
  run.step(make_pair_batch(1), loss);
  angry = true;
  CHECK_THROWS_AS(run.flush(), std::runtime_error);
  CHECK(run.updates() == 3);
  CHECK(run.cursor().consumed == 7);
}

TEST_CASE("a resume within an epoch rejects batches in memory of another number, and one between epochs takes them") {
  using namespace keel::literals;
  struct saves : keel::recipe<keel::checkpoint::every<2_steps>> {};
  for (bool const between : {false, true}) {
    scratch_directory const directory;
    auto const train = [&](std::size_t count, std::int64_t updates, bool accepts) {
      auto const model = make_small();
      keel::adamw optimizer(model->parameters(), 0.01);
      std::vector<pair_batch> batches;
      for (std::uint64_t i = 0; i < count; ++i) batches.push_back(make_pair_batch(i));
      keel::trainer<saves> run{
          model, optimizer, quiet({.run_directory = directory.path(), .updates = updates, .accept_changed_recipe = accepts})};
      run.fit(batches, mean_squared_error(model));
      return run.updates();
    };
    train(6, between ? 6 : 4, false);
    if (between) {
      CHECK(train(8, 10, false) == 10);
      continue;
    }
    for (std::size_t const other : {std::size_t{8}, std::size_t{5}}) {
      try {
        train(other, 10, false);
        FAIL("nothing was thrown");
      } catch (keel::checkpoint_error const& thrown) {
        CHECK(thrown.id() == "E03");
        CHECK(std::string(thrown.what()).find("it was 6 batches, now " + std::to_string(other) + " batches") !=
              std::string::npos);
      }
    }
    CHECK(train(8, 10, true) == 10);
  }
}

TEST_CASE("an epoch whose end is that of the run is evaluated and saved, where the source knows its length") {
  using namespace keel::literals;
  struct by_epochs : keel::recipe<keel::checkpoint::every<1_epochs>, keel::evaluation::every<1_epochs>> {};
  auto const model = make_small();
  std::vector<pair_batch> batches;
  for (std::uint64_t i = 0; i < 5; ++i) batches.push_back(make_pair_batch(i));
  auto const by_function = [&](std::int64_t) { return std::ref(batches).get(); };
  auto const train = [&](auto& source, std::int64_t batches_per_epoch) {
    scratch_directory const directory;
    keel::adamw optimizer(model->parameters(), 0.01);
    keel::trainer<by_epochs> run{
        model, optimizer,
        quiet({.run_directory = directory.path(), .updates = 10, .batches_per_epoch = batches_per_epoch})};
    run.evaluate_on("held_out", batches, mean_squared_error(model));
    int evaluations = 0;
    run.on([&](keel::event::evaluated const&) { ++evaluations; });
    run.fit(source, mean_squared_error(model));
    CHECK(run.updates() == 10);
    CHECK(run.cursor().epoch == (evaluations == 2 ? 2 : 1));
    return evaluations;
  };
  CHECK(train(batches, 0) == 2);
  CHECK(train(by_function, 5) == 2);
  // Nobody knows it.
  CHECK(train(by_function, 0) == 1);
}
