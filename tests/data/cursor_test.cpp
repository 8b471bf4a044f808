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
