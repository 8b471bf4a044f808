// What the threads of this process do now, as a hang needs it said: function by function, of each thread or of one. Each is asked by SIGURG,
// which a process ignores by itself; a handler of the program's for it is away for that moment. A function has its name where the linker has
// exported it, as those of libraries and of programs linked with -rdynamic.
#pragma once

#include <sys/types.h>
#include <keel/libtorch/mode.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// Of one thread, or of all but the calling one: a paragraph each. A thread that does not answer within a fifth of a second, because it blocks
/// the signal or waits for the kernel, is named without its stack. Throws nothing but std::bad_alloc. One call at a time.
std::string stack_of_thread(pid_t thread);
std::string stacks_of_threads();
/// This one, by the number that the kernel gave it.
pid_t this_thread();

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/timeout/thread_stacks.ipp>
#endif
