// Which rank the others wait for: who it is, and when it is said.
#include <keel/shard/straggler_watch.hpp>

#include "../support.hpp"

using namespace keel_test;
using keel::detail::straggler_watch;
using keel::detail::summarize_rank_times;

TEST_CASE("the slowest rank is named beside the median of the others") {
  auto const three = summarize_rank_times({10.0, 40.0, 14.0});
  CHECK(three.slowest == 1);
  CHECK(three.slowest_ms == 40.0);
  CHECK(three.others_ms == 14.0);
  CHECK(summarize_rank_times({7.0}).others_ms == 0.0);
  CHECK(summarize_rank_times({}).slowest_ms == 0.0);
}

TEST_CASE("a rank that is slower by half is said once behind twenty updates, and again behind a pause or of another rank") {
  straggler_watch watch;
  auto const said = [&](std::vector<double> const& milliseconds, int updates) {
    int times = 0;
    for (int i = 0; i < updates; ++i) times += watch.take(summarize_rank_times(milliseconds)) ? 1 : 0;
    return times;
  };
  CHECK(said({10.0, 14.9, 10.0}, 100) == 0);
  CHECK(said({10.0, 16.0, 10.0}, 19) == 0);
  CHECK(said({10.0, 16.0, 10.0}, 1) == 1);
  CHECK(said({10.0, 16.0, 10.0}, 100) == 0);
  CHECK(said({10.0, 11.0, 10.0}, 1) == 0);
  CHECK(said({10.0, 16.0, 10.0}, 20) == 1);
  CHECK(said({10.0, 10.0, 30.0}, 20) == 1);
  CHECK(said({10.0}, 100) == 0);
}
