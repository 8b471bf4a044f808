// Checks of an epoch's length and of the data order.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/data/data_cursor.hpp>
#include <keel/trainer/epoch_walker.hpp>
#include <keel/trainer/options.hpp>
#include <optional>
#include <range/v3/range/concepts.hpp>
#include <range/v3/range/primitives.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// Throws error (E12) if the length of the source differs from options.batches_per_epoch.
template <class Batches>
void require_epoch_length([[maybe_unused]] Batches const& batches, [[maybe_unused]] std::int64_t batches_per_epoch) {
  if constexpr (
      requires {
        { batches.size() } -> std::convertible_to<std::int64_t>;
      } && !requires { batches.begin(); }) {
    auto const size = static_cast<std::int64_t>(batches.size());
    if (batches_per_epoch > 0 && size != batches_per_epoch)
      throw error("E12", "options.batches_per_epoch is " + std::to_string(batches_per_epoch) + ", but the data has " +
                             std::to_string(size) +
                             " batches per epoch. Set the option to that number: schedules are computed from it.");
  }
}

/// Returns the number of batches per epoch, from the options or the source; -1: unknown. With several ranks only the options are used,
/// because sources may differ between ranks.
template <class Batches>
std::int64_t epoch_length([[maybe_unused]] Batches& batches, std::int64_t batches_per_epoch, bool is_single_rank) {
  if (batches_per_epoch > 0 || !is_single_rank) return batches_per_epoch > 0 ? batches_per_epoch : -1;
  if constexpr (ranges::forward_range<Batches&> && ranges::sized_range<Batches&>) {
    return static_cast<std::int64_t>(ranges::size(batches));
  } else if constexpr (
      requires {
        { batches.size() } -> std::convertible_to<std::int64_t>;
      } && !requires { batches.begin(); }) {
    return static_cast<std::int64_t>(batches.size());
  } else {
    return -1;
  }
}

/// Returns the options with batches_per_epoch set, if the source knows its number of batches.
template <class Batches>
trainer_options with_epoch_length(trainer_options options, Batches& batches) {
  options.batches_per_epoch = std::max<std::int64_t>(epoch_length(batches, options.batches_per_epoch, true), 0);
  return options;
}

/// Stores the description of the data order in the cursor. Throws checkpoint_error (E03) if it differs from the stored one.
inline void adopt_data_order(data_cursor& cursor, std::string const& order, bool accept_another) {
  if (!cursor.order.empty() && cursor.order != order && !accept_another)
    throw checkpoint_error("E03", "the data order has changed (it was " + cursor.order + ", now " + order +
                                      "), so the saved position in the data does not apply. Use the original data, another run "
                                      "directory, or options.accept_changed_recipe.");
  cursor.order = order;
}
/// Calls adopt_data_order() with `batches.describe()`, or else, with a single rank, with the number of batches in memory. That number may
/// differ between ranks, and may change between epochs.
template <class Batches>
void adopt_source_order(data_cursor& cursor, [[maybe_unused]] Batches& batches, bool is_single_rank, bool accept_another) {
  if constexpr (requires { std::string(batches.describe()); }) {
    adopt_data_order(cursor, batches.describe(), accept_another);
  } else if constexpr (ranges::forward_range<Batches&> && ranges::sized_range<Batches&>) {
    if (!is_single_rank) return;
    auto const described = [](std::int64_t count) { return std::to_string(count) + " batches"; };
    bool const is_between_epochs = cursor.position == 0 || cursor.order == described(cursor.position);
    adopt_data_order(cursor, described(static_cast<std::int64_t>(ranges::size(batches))), accept_another || is_between_epochs);
  }
}

}  // namespace keel::detail::inline KEEL_MODE
