// Captures the stacks of this process's threads, to diagnose a hang. Each thread is interrupted by SIGURG, which is ignored by default; a
// handler of the program for it is replaced during the capture. Functions have names only if their symbols are exported, as those of shared
// libraries and of programs linked with -rdynamic.
#pragma once

#include <sys/types.h>
#include <keel/libtorch/mode.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// Returns the stack of one thread, or of all but the calling one, one paragraph each. A thread that does not respond within 0.2 s, because
/// it blocks the signal or waits in the kernel, is listed without a stack. Concurrent calls are serialized.
std::string stack_of_thread(pid_t thread);
std::string stacks_of_threads();
/// Returns the kernel's id of the calling thread.
pid_t this_thread();

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/timeout/thread_stacks.ipp>
#endif
