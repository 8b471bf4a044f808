// Definitions for recent_collectives.hpp.
#pragma once

#include <algorithm>
#include <iterator>
#include <keel/collective/recent_collectives.hpp>
#include <keel/core/seconds_since_1970.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void recent_collectives::set_current_update(std::int64_t updates) {
  std::lock_guard<std::mutex> const lock(mutex_);
  updates_ = updates;
}

KEEL_BODY void recent_collectives::began(std::int64_t sequence, char const* operation, std::int64_t elements) {
  std::lock_guard<std::mutex> const lock(mutex_);
  at(sequence) = {sequence, operation, elements, updates_, seconds_since_1970(), false};
}

KEEL_BODY void recent_collectives::mark_completed(std::int64_t sequence) {
  std::lock_guard<std::mutex> const lock(mutex_);
  if (recent_collective& one = at(sequence); one.sequence == sequence) one.is_completed = true;
}

KEEL_BODY std::vector<recent_collective> recent_collectives::all() const {
  std::vector<recent_collective> found;
  {
    std::lock_guard<std::mutex> const lock(mutex_);
    std::copy_if(last_.begin(), last_.end(), std::back_inserter(found), [](auto const& one) { return one.sequence > 0; });
  }
  std::sort(found.begin(), found.end(), [](auto const& a, auto const& b) { return a.sequence < b.sequence; });
  return found;
}

KEEL_BODY std::string describe_current_collective(std::vector<recent_collective> const& all) {
  if (all.empty()) return "";
  auto const open = std::find_if(all.begin(), all.end(), [](auto const& one) { return !one.is_completed; });
  recent_collective const& one = open == all.end() ? all.back() : *open;
  return std::string(open == all.end() ? "its last collective, which has ended, is " : "it is in collective ") +
         std::to_string(one.sequence) + ", " + one.operation + " of " + std::to_string(one.elements) +
         " elements after update " + std::to_string(one.update);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
