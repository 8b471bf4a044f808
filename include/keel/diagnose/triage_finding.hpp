// A cause that a triage found, with its evidence.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <keel/policy/trouble.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A likely cause of trouble.
struct triage_finding {
  trouble cause;                      ///< the cause
  double confidence;                  ///< 0 to 1; below 0.5 it does not suffice for the verdict in_trouble
  std::vector<std::string> evidence;  ///< sentences with update numbers
};

}  // namespace keel::inline KEEL_MODE
