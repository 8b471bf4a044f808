// Which exceptions leave a state that no run should go on from, so that none is saved after them, and which are a run's outcome.
#pragma once

#include <exception>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>

namespace keel::detail::inline KEEL_MODE {

/// The state behind it is not what training made of it, is not finite, or cannot be written.
inline bool spoils_the_run(std::exception const& thrown) {
  return dynamic_cast<interference_error const*>(&thrown) != nullptr || dynamic_cast<file_error const*>(&thrown) != nullptr ||
         dynamic_cast<nonfinite_error const*>(&thrown) != nullptr || dynamic_cast<diverged_error const*>(&thrown) != nullptr ||
         dynamic_cast<out_of_memory_error const*>(&thrown) != nullptr || is_out_of_memory(thrown) ||
         dynamic_cast<checkpoint_error const*>(&thrown) != nullptr;
}

/// In the handler of an exception: what a run returns whose policy tolerates no more skipped updates. Rethrows any other.
inline outcome outcome_of_limit(std::exception const& thrown) {
  auto const* const by = dynamic_cast<skip_limit_error const*>(&thrown);
  if (by == nullptr || !by->limit()) throw;
  return result::gave_up{*by->limit(), by->what()};
}

}  // namespace keel::detail::inline KEEL_MODE
