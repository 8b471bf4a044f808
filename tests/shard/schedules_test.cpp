// Lives of 2 to 64 ranks that seeds draw: none hangs, the replicas stay equal, and whoever is alright names who was not. All of them, by their
// name: benchmarks/run schedules.
#include <ATen/Parallel.h>

#include "../support.hpp"

#include "schedule_of_ranks.hpp"

TEST_CASE("two thousand drawn schedules of several ranks end, equal or by name") {
  // Each rank is a thread, which would get a pool of its own.
  int const threads = at::get_num_threads();
  at::set_num_threads(1);
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    std::string const wrong = keel_test::schedule_of_ranks(seed);
    INFO(wrong);
    CHECK(wrong.empty());
  }
  at::set_num_threads(threads);
}
