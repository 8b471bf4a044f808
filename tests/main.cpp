#if __has_include(<catch2/catch.hpp>)
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#else
#include <catch2/catch_session.hpp>
#endif

#include <ATen/Parallel.h>

#include <cstdlib>

int main(int count, char** words) {
  // Two threads, so that what promises to be the same for any number of threads is put to the test; one where a sanitizer does not see
  // how OpenMP's threads wait for each other.
  char const* const threads = std::getenv("KEEL_TEST_THREADS");
  at::set_num_threads(threads == nullptr ? 2 : std::atoi(threads));
  return Catch::Session().run(count, words);
}
