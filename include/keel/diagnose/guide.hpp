// What is seen when a run goes wrong, what causes it and what to do: for a person who has a message or a symptom, and for the guide page
// (README.md in this folder), which a script makes of it. Read by explain.hpp.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <span>

namespace keel::inline KEEL_MODE {

struct guide_entry {
  char const* family;  ///< of the guide page
  char const* seen;    ///< a message, or what a person sees; also messages of other libraries that mean the same
  char const* cause;
  char const* fix;   ///< least invasive first
  char const* keel;  ///< what keel does about it, or where it says so
};

std::span<guide_entry const> guide();

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/guide.ipp>
#endif
