// Losses that run out of memory where a test says so.
#pragma once

#include <cstdlib>
#include <functional>

#include "transformer.hpp"

namespace keel_test {

[[noreturn]] inline void run_out_of_memory() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "a test took the memory away");
  std::abort();
}

/// Runs out of memory in the calls that are marked.
template <class LossOf>
auto starving(LossOf loss_of, std::function<bool()> const& now) {
  return [=](auto const& batch) {
    if (now()) run_out_of_memory();
    return loss_of(batch);
  };
}

}  // namespace keel_test
