// Definitions for timeline.hpp.
#pragma once

#include <keel/memory/timeline.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::memory::inline KEEL_MODE {

KEEL_BODY char const* to_string(growth found) {
  switch (found) {
    case growth::unknown:
      return "too few updates to judge";
    case growth::flat:
      return "flat";
    case growth::staircase:
      return "a staircase: tensors are kept from update to update";
    case growth::slope:
      return "a slope: the same takes more and more from the system";
  }
  return "unknown";
}

KEEL_BODY void timeline::add(std::int64_t update, usage const& of) {
  if (of.peak() > peak_) {
    peak_ = of.peak();
    peak_update_ = update;
    peak_phase_ = of.highest();
  }
  sample next{of.held, of.reserved};
  if (skipped_ > 0) --skipped_;
  if (skipped_ > 0) return;
  if (loaded_) go_on_from(next);
  last_ = next;
  for (scale& one : scales_) {
    one.push(next);
    if (!one.close(next)) break;
  }
}

KEEL_BODY growth timeline::judge() const {
  growth found = growth::unknown;
  for (scale const& one : scales_) {
    growth const here = one.judge();
    if (here == growth::staircase || here == growth::slope) return here;
    if (found == growth::unknown) found = here;
  }
  return found;
}

}  // namespace keel::memory::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
