// The packed message that the ranks of a replicated step exchange: its numbers, and the text of a failure.
#pragma once

#include <cstdint>
#include <exception>
#include <keel/core/error.hpp>
#include <keel/shard/packed_agreement.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

class replication;

inline constexpr std::int64_t max_message_length = 1000;

namespace packed_field {
/// Indices of the numbers in the packed control message.
enum number : std::int64_t {
  threw,
  nonfinite,
  loss,
  loss_weight,
  weight,
  unit,
  rows,
  tokens,
  updates,
  trains,
  signal,
  stops,
  saves,
  thrashes,
  ended,
  names,
  on_device,
  rates,
  sample,
  busy,
  phase,
  collective,
  sequence,
  overlaps,
  count
};
static_assert(count + 2 == packed_agreement::count);
}  // namespace packed_field

/// Values of packed_field::nonfinite: a loss of this rank is not finite, or a pass of it was cancelled because one of another rank was not.
inline constexpr double has_nonfinite_loss = 1.0, has_cancelled_pass = 2.0;

/// Value of packed_field::sequence on a rank whose pass is not the expected one. Otherwise it is the checksum of what it expects.
inline constexpr double has_deviated_pass = -1.0;

/// The step whose passes this thread runs; null between them.
inline replication const*& running_step() {
  thread_local replication const* of_this_thread = nullptr;
  return of_this_thread;
}

inline constexpr char const* unknown_exception_message = "an exception that is not a std::exception";
/// Returns the first line of the exception's message; never empty.
inline std::string peer_message(std::exception const& thrown) {
  std::string const message = first_line(thrown);
  return message.empty() ? unknown_exception_message : message;
}

}  // namespace keel::detail::inline KEEL_MODE
