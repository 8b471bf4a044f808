// Classifies exceptions: those after which the state must not be saved, and those that fit() returns as an outcome.
#pragma once

#include <exception>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>
#include <optional>

namespace keel::detail::inline KEEL_MODE {

/// True if the state after this exception must not be saved: it is corrupt, not finite, or cannot be written.
inline bool invalidates_run(std::exception const& thrown) {
  return dynamic_cast<interference_error const*>(&thrown) != nullptr || dynamic_cast<file_error const*>(&thrown) != nullptr ||
         dynamic_cast<nonfinite_error const*>(&thrown) != nullptr || dynamic_cast<diverged_error const*>(&thrown) != nullptr ||
         dynamic_cast<out_of_memory_error const*>(&thrown) != nullptr || is_out_of_memory(thrown) ||
         dynamic_cast<checkpoint_error const*>(&thrown) != nullptr;
}

/// Returns the outcome of a run that exceeded its limit of skipped updates, which all ranks detect together. Returns nullopt for other
/// exceptions, which fit() throws.
inline std::optional<outcome> outcome_at_skip_limit(std::exception const& thrown, config const& recipe) {
  auto const* const by = dynamic_cast<skip_limit_error const*>(&thrown);
  if (by == nullptr) return std::nullopt;
  std::optional<reason> const limit = by->limit();
  if (!limit) return std::nullopt;
  // With nonfinite::raise, an overflow at the minimum loss scale is also thrown.
  if (*limit == reason::scale_overflow && recipe.nonfinite.kind == nonfinite::kind::raise) return std::nullopt;
  return result::gave_up{*limit, by->what()};
}

}  // namespace keel::detail::inline KEEL_MODE
