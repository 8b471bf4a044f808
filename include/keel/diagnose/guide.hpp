// The guide: symptoms of runs that go wrong, their causes and remedies. A script generates the guide page (README.md in this folder) from
// it; explain.hpp searches it.
#pragma once

#include <keel/libtorch/mode.hpp>
#include <keel/policy/trouble.hpp>
#include <span>

namespace keel::inline KEEL_MODE {

struct guide_entry {
  char const* family;  ///< section of the guide page
  char const* seen;    ///< a message or a symptom; includes equivalent messages of other libraries
  char const* keel;    ///< what keel does about it, or where keel reports it
  likely_cause causes[max_texts];

  /// A symptom whose cause is not in the table of causes.
  constexpr guide_entry(char const* section, char const* symptom, char const* cause, char const* fix, char const* in_keel)
      : family(section), seen(symptom), keel(in_keel), causes{{cause, fix}} {}
  /// A symptom with at least one cause of the table.
  template <class... Causes>
  constexpr guide_entry(char const* section, char const* symptom, char const* in_keel, trouble first, Causes... more)
      : family(section), seen(symptom), keel(in_keel), causes{first, more...} {}
};

std::span<guide_entry const> guide();

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/diagnose/guide.ipp>
#endif
