// So many lives of 2 to 64 ranks, each drawn by a seed: what fails prints its seed, by which it fails again.
//     schedules COUNT [FIRST]
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "../tests/shard/schedule_of_ranks.hpp"
#include "measure.hpp"

int main(int count, char** words) {
  if (count < 2) return 2;
  std::int64_t const many = std::atoll(words[1]);
  std::uint64_t const begin = count > 2 ? std::strtoull(words[2], nullptr, 10) : 1;
  at::set_num_threads(1);
  std::int64_t failed = 0;
  double const ms = keel_benchmark::milliseconds([&] {
    for (std::int64_t i = 0; i < many; ++i) {
      std::string const wrong = keel_test::schedule_of_ranks(begin + static_cast<std::uint64_t>(i));
      if (wrong.empty()) continue;
      ++failed;
      std::fprintf(stderr, "%s\n", wrong.c_str());
    }
  });
  std::printf("{\"name\": \"schedules\", \"ours\": %lld, \"peer\": 0, \"ratio\": %lld, \"unit\": \"failed\", \"detail\": \"of %lld schedules of 2 to 64 "
              "ranks in one process, from seed %llu, in %.0f s; 0 is right\"}\n",
              static_cast<long long>(failed), static_cast<long long>(failed), static_cast<long long>(many),
              static_cast<unsigned long long>(begin), ms / 1e3);
  return failed == 0 ? 0 : 1;
}
