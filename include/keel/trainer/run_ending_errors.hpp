// Which exceptions leave a state that no run should go on from, so that none is saved after them, and which are a run's outcome.
#pragma once

#include <exception>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>
#include <optional>

namespace keel::detail::inline KEEL_MODE {

/// The state behind it is not what training made of it, is not finite, or cannot be written.
inline bool invalidates_run(std::exception const& thrown) {
  return dynamic_cast<interference_error const*>(&thrown) != nullptr || dynamic_cast<file_error const*>(&thrown) != nullptr ||
         dynamic_cast<nonfinite_error const*>(&thrown) != nullptr || dynamic_cast<diverged_error const*>(&thrown) != nullptr ||
         dynamic_cast<out_of_memory_error const*>(&thrown) != nullptr || is_out_of_memory(thrown) ||
         dynamic_cast<checkpoint_error const*>(&thrown) != nullptr;
}

/// What a run returns in the place of this exception: its policy tolerates no more skipped updates, which all ranks find together. Nothing
/// where the exception is thrown.
inline std::optional<outcome> limit_reached(std::exception const& thrown, config const& recipe) {
  auto const* const by = dynamic_cast<skip_limit_error const*>(&thrown);
  if (by == nullptr || !by->limit()) return std::nullopt;
  // The floor of a loss scale is reached under every policy.
  if (*by->limit() == reason::scale_overflow && recipe.nonfinite.kind == nonfinite::kind::raise) return std::nullopt;
  return result::gave_up{*by->limit(), by->what()};
}

}  // namespace keel::detail::inline KEEL_MODE
