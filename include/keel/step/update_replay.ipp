// Definitions for update_replay.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <exception>
#include <keel/collective/agreed.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/step/update_replay.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY std::optional<step_outcome> update_replay::retry_on_out_of_memory(
    replication& ranks, bool complete, c10::function_ref<void()> attempt,
    c10::function_ref<std::optional<step_outcome>(std::string const& message)> take_rung) {
  for (;;) {
    bool is_peer_failure = false;
    if (!out_of_memory_message_) {
      try {
        attempt();
      } catch (std::exception const& thrown) {
        is_peer_failure = dynamic_cast<out_of_memory_on_peer const*>(&thrown) != nullptr;
        if (!is_peer_failure && !is_out_of_memory(thrown)) throw;
        out_of_memory_message_ = first_line(thrown);
      }
    }
    // Recover outside the handler, because a caught exception may keep frames and tensors alive.
    if (ranks.is_shared()) {
      if (!complete) return std::nullopt;
      if (out_of_memory_message_ && !is_peer_failure) ranks.report_out_of_memory();
      bool const any = agree(ranks.world(), out_of_memory_message_.has_value()).value();
      if (any && !out_of_memory_message_) out_of_memory_message_ = "memory ran out on another rank";
    }
    auto const message = std::exchange(out_of_memory_message_, std::nullopt);
    if (!message) return std::nullopt;
    if (auto gave_up = take_rung(*message)) return gave_up;
  }
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
