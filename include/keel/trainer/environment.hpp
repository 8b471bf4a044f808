// The seams of a trainer as types: signals, autocast, how the host reads a device. Files and clock are options. A test derives from
// environment and replaces one.
#pragma once

#include <keel/step/step_environment.hpp>
#include <keel/trainer/signals.hpp>
#include <random>
#include <string>

namespace keel::inline KEEL_MODE {

struct environment : step_environment {
  using stop = signal_listener;
  /// What distinguishes the checkpoints of one run from all others: 16 letters.
  static std::string new_run_id() {
    std::random_device chance;
    std::string id;
    for (int i = 0; i < 16; ++i) id += "0123456789abcdef"[chance() % 16];
    return id;
  }
};

}  // namespace keel::inline KEEL_MODE
