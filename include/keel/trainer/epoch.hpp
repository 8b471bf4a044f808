// One pass over the data, from where the cursor stands to the data's end or the run's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/core/outcome.hpp>
#include <keel/data/batch_source.hpp>
#include <keel/libtorch/random.hpp>
#include <keel/trainer/progress.hpp>
#include <optional>
#include <string>

namespace keel::detail {

/// Throws error (E12) for a source that knows its length, where the options say another one.
template <class Batches>
void require_epoch_length([[maybe_unused]] Batches const& batches, [[maybe_unused]] std::int64_t batches_per_epoch) {
  if constexpr (
      requires {
        { batches.size() } -> std::convertible_to<std::int64_t>;
      } && !requires { batches.begin(); }) {
    auto const size = static_cast<std::int64_t>(batches.size());
    if (batches_per_epoch > 0 && size != batches_per_epoch)
      throw error("E12", "options.batches_per_epoch is " + std::to_string(batches_per_epoch) +
                             ", and the batches say that an epoch has " + std::to_string(size) +
                             ". Give the options that number: schedules are spread over it.");
  }
}

/// Remembers what a source says of its order. Throws checkpoint_error (E03) if it is another one than the cursor counts in.
inline void take_order(data_cursor& cursor, std::string const& order, bool accept_another) {
  if (!cursor.order.empty() && cursor.order != order && !accept_another)
    throw checkpoint_error("E03", "the run counts its position in other data: before " + cursor.order + ", now " + order +
                                      ". Use that data, another run directory, or options.accept_changed_recipe.");
  cursor.order = order;
}

/// Calls `begin(position)` once and `take(batch)` for every batch from the cursor on, which take moves; what take returns ends
/// it. At the end of the epoch the cursor still stands there. Throws data_error (E06) for an epoch without batches, or with
/// fewer than the cursor has seen.
template <class Batches, class Begin, class Take>
std::optional<outcome> walk_epoch(Batches& batches, data_cursor& cursor, at::DeviceType device, Begin const& begin,
                                  Take const& take) {
  std::int64_t const consumed = cursor.position;
  // A loader draws its order when it begins. In an epoch that goes on it must draw what it drew the first time, and then the
  // generators must stand where they stood.
  bool const goes_on = cursor.in_epoch;
  // A source that begins at the cursor draws there what it would have drawn on its way.
  bool const begins_there = positioned_function<Batches> && consumed > 0;
  bool const begins_again = goes_on && !begins_there;
  auto const now = random_snapshot::take(device);
  if (begins_again) cursor.at_epoch_begin.restore();
  if (!goes_on) {
    cursor.at_epoch_begin = now;
    cursor.in_epoch = true;
  }
  begin(consumed);
  auto const walk = [&](auto at, auto const& end) -> std::optional<outcome> {
    if (consumed > 0 && !begins_there) {
      // A loader fetches the next batch when it moves on, so the last move is made with the generators where they stood.
      if (skip_batches(at, end, consumed - 1) < consumed - 1 || !(at != end)) {
        throw data_error("E06", "the data of epoch " + std::to_string(cursor.epoch) + " ends before batch " +
                                    std::to_string(consumed) +
                                    ", where the checkpoint continues. Use the data of that run, or another run directory.");
      }
      static_cast<void>(*at);
    }
    if (begins_again) now.restore();
    if (consumed > 0 && !begins_there) ++at;
    for (; at != end; ++at) {
      if (auto stopped = take(*at)) return stopped;
    }
    return std::nullopt;
  };
  auto ended = with_epoch(batches, cursor.epoch, walk, consumed);
  if (!ended && cursor.position == 0) {
    throw data_error("E06",
                     "epoch " + std::to_string(cursor.epoch) + " has no batches. Look at the data's path and at its filters.");
  }
  return ended;
}

}  // namespace keel::detail
