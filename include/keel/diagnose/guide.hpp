// The guide: symptoms of runs that go wrong, their causes and remedies. A script generates the guide page (README.md in this folder) from
// it; explain.hpp searches it.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <span>

namespace keel::inline KEEL_MODE {

struct guide_entry {
  char const* family;  ///< section of the guide page
  char const* seen;    ///< a message or a symptom; includes equivalent messages of other libraries
  char const* cause;
  char const* fix;   ///< remedies, the least invasive first
  char const* keel;  ///< what keel does about it, or where keel reports it
};

std::span<guide_entry const> guide();

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/guide.ipp>
#endif
