// The seams of keel: what a step or trainer takes from the world around it. A test derives from environment and replaces
// one type; the real thing costs nothing.
#pragma once

#include <chrono>
#include <keel/step/autocast.hpp>

namespace keel {

struct step_environment {
  using clock = std::chrono::steady_clock;
  using autocast = autocast_scope;
};

}  // namespace keel
