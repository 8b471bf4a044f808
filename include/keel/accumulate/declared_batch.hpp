// The batch algebra of keel::accumulate against the batches that really come (B01).
#pragma once

#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/policy/accumulate.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

/// Throws data_error for a micro-batch without rows (E06) or larger than declared (B01).
inline void require_declared_rows(accumulate_settings const& declared, std::int64_t rows) {
  if (rows < 1) {
    throw data_error("E06", "a batch has no rows. Leave empty batches out of the data.");
  }
  if (declared.micro_batch > 0 && rows > declared.micro_batch) {
    throw data_error("B01", "a batch of " + std::to_string(rows) + " rows came to a recipe that declares keel::micro_batch<" +
                                std::to_string(declared.micro_batch) + ">. Cut the data into batches of that size.");
  }
}

/// A full update must hold the global batch that the recipe declares; only the data's end may leave less, and never the `first`
/// update. `rows` over all ranks. Throws data_error (B01).
inline void require_declared_update(accumulate_settings const& declared, std::int64_t micro_batches, std::int64_t rows,
                                    bool first) {
  if (declared.global_batch == 0 || micro_batches < declared.count) return;
  if (rows < declared.global_batch && !first) return;
  if (rows == declared.global_batch) return;
  throw data_error("B01", "an update holds " + std::to_string(rows) + " rows in a recipe that declares keel::global_batch<" +
                              std::to_string(declared.global_batch) + ">. Cut the data into batches whose sum is that number.");
}

}  // namespace keel::inline KEEL_MODE
