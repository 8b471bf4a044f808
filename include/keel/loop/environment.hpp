// The seams of a trainer: clock, files, signals and autocast as types. A test derives from environment and replaces one.
#pragma once

#include <keel/checkpoint/files.hpp>
#include <keel/loop/stop.hpp>
#include <keel/step/environment.hpp>

namespace keel {

struct environment : step_environment {
  using files = posix_files;
  using stop = signal_listener;
};

}  // namespace keel
