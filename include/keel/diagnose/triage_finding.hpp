// A cause that a triage found, with why.
#pragma once

#include <keel/diagnose/trouble.hpp>
#include <string>
#include <vector>

namespace keel::inline KEEL_MODE {

/// A cause of trouble that the record speaks for.
struct triage_finding {
  trouble cause;                      ///< the cause
  double confidence;                  ///< 0 to 1; what is below a half is not enough to say that a run is in trouble
  std::vector<std::string> evidence;  ///< sentences with update numbers
};

}  // namespace keel::inline KEEL_MODE
