// Definitions for nonfinite_guard.hpp.
#pragma once

#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/nonfinite/nonfinite_guard.hpp>
#include <optional>
#include <string>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::optional<std::string> nonfinite_guard::skipped(reason why, std::string const& where, std::int64_t update,
                                                              std::string const& origin) {
  ++consecutive_;
  bool const first_ends = settings_.kind == nonfinite::kind::raise;
  if (!first_ends && consecutive_ < settings_.limit) return std::nullopt;
  std::string what = to_string(why);
  if (!where.empty()) what += " in " + where;
  what += " at update " + std::to_string(update);
  if (first_ends) {
    throw nonfinite_error("E08",
                          what + (origin.empty() ? "" : ": " + origin) +
                              ". The parameters are as they were before it. Look at that batch, or let the run go on with "
                              "keel::nonfinite::skip<10>.");
  }
  if (settings_.kind == nonfinite::kind::rollback) return what + ", " + std::to_string(consecutive_) + " in a row";
  throw nonfinite_error("E08",
                        what + ", " + std::to_string(consecutive_) + " in a row, which is this recipe's limit" +
                            (origin.empty() ? "" : "; of the last " + origin) +
                            ". The parameters are those of the last good update. "
                            "Lower the learning rate, or look at the data from here on.",
                        why);
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
