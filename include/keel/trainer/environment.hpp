// A trainer's interface to its machine, except files and clock, which are options. Tests derive from it and override functions.
#pragma once

#include <keel/step/step_environment.hpp>
#include <random>
#include <string>

namespace keel::inline KEEL_MODE {

class environment : public step_environment {
 public:
  /// Returns a random id that distinguishes the checkpoints of a run from those of all others: 16 hexadecimal digits.
  virtual std::string new_run_id() const {
    std::random_device chance;
    std::string id;
    for (int i = 0; i < 16; ++i) id += "0123456789abcdef"[chance() % 16];
    return id;
  }
};

}  // namespace keel::inline KEEL_MODE
