// What a trainer takes from the machine that it runs on, beside files and clock, which are options. A test derives from it and replaces a
// function.
#pragma once

#include <keel/step/step_environment.hpp>
#include <random>
#include <string>

namespace keel::inline KEEL_MODE {

class environment : public step_environment {
 public:
  /// What distinguishes the checkpoints of one run from all others: 16 letters.
  virtual std::string new_run_id() const {
    std::random_device chance;
    std::string id;
    for (int i = 0; i < 16; ++i) id += "0123456789abcdef"[chance() % 16];
    return id;
  }
};

}  // namespace keel::inline KEEL_MODE
