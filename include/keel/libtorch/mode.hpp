// KEEL_COMPILED, which the target keel::compiled sets, selects the mode. If it is set, the bodies (.ipp) are compiled once, in a library;
// otherwise they are inline. All code that needs LibTorch is in an inline namespace of the mode, so that a program that mixes the two modes
// does not link.
#pragma once

#ifdef KEEL_COMPILED
#define KEEL_MODE compiled
#else
#define KEEL_MODE header_only
#endif

namespace keel::detail {

// The linker rejects a name that is thread-local in only one of two files, and prints this name.
#ifdef KEEL_COMPILED
[[gnu::used]] inline char keel_compiled_and_keel_keel_are_mixed;
#else
[[gnu::used]] inline thread_local char keel_compiled_and_keel_keel_are_mixed;
#endif

}  // namespace keel::detail
