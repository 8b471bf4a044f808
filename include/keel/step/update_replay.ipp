// The bodies of update_replay.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <exception>
#include <keel/collective/agreed.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/step/update_replay.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::optional<step_outcome> update_replay::attempt_until_it_fits(
    replication& ranks, bool complete, c10::function_ref<void()> attempt,
    c10::function_ref<std::optional<step_outcome>(std::string const& message)> take_rung) {
  for (;;) {
    bool is_of_other = false;
    if (!starved_) {
      try {
        attempt();
      } catch (std::exception const& thrown) {
        is_of_other = dynamic_cast<memory_of_other_rank const*>(&thrown) != nullptr;
        if (!is_of_other && !is_out_of_memory(thrown)) throw;
        starved_ = first_line(thrown);
      }
    }
    // Recovery stands out here because a caught exception may keep frames and tensors alive.
    if (ranks.is_shared()) {
      if (!complete) return std::nullopt;
      if (starved_ && !is_of_other) ranks.tell_out_of_memory();
      bool const any = agree(ranks.world(), starved_.has_value()).value();
      if (any && !starved_) starved_ = "memory ran out on another rank";
    }
    if (!starved_) return std::nullopt;
    std::string const message = *std::exchange(starved_, std::nullopt);
    if (auto gave_up = take_rung(message)) return gave_up;
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
