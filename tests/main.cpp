#if __has_include(<catch2/catch.hpp>)
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#else
#include <catch2/catch_session.hpp>
#endif

#include <ATen/Parallel.h>

int main(int count, char** words) {
  // Two threads, so that what promises to be the same for any number of threads is put to the test.
  at::set_num_threads(2);
  return Catch::Session().run(count, words);
}
