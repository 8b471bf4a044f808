// Whether this thread runs the backward pass of a recomputed block, within the backward pass of the loss.
#pragma once

#include <keel/libtorch/mode.hpp>

namespace keel::detail::inline KEEL_MODE {

/// RAII: such a pass. May be nested.
class recompute_pass {
 public:
  recompute_pass() { ++count(); }
  recompute_pass(recompute_pass const&) = delete;
  recompute_pass& operator=(recompute_pass const&) = delete;
  ~recompute_pass() { --count(); }
  static bool is_running() { return count() > 0; }

 private:
  static int& count() {
    thread_local int of_this_thread = 0;
    return of_this_thread;
  }
};

}  // namespace keel::detail::inline KEEL_MODE
