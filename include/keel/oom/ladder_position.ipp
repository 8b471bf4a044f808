// Definitions for ladder_position.hpp.
#pragma once

#include <keel/oom/ladder_position.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::optional<oom::rung_kind> ladder_position::updated() {
  if (ladder_.release_after == 0 || taken_.empty()) return std::nullopt;
  auto const last = static_cast<oom::rung_kind>(taken_.back());
  bool const stays =
      last == oom::rung_kind::quantize_base || last == oom::rung_kind::shorten_sequence || last == oom::rung_kind::custom;
  // Divides, because the product may overflow.
  if (stays || ++updates_since_change_ / patience_ < ladder_.release_after) return std::nullopt;
  updates_since_change_ = 0;
  released_ = taken_.back();
  taken_.pop_back();
  arguments_.pop_back();
  fold();
  return last;
}

KEEL_BODY int ladder_position::first_candidate() const {
  if (taken_.empty()) return 0;
  for (int index = 0; index < ladder_.count; ++index) {
    auto const& rung = ladder_.rungs[index];
    bool const same = static_cast<std::int64_t>(rung.kind) == taken_.back() && argument_of(rung) == arguments_.back();
    if (!same) continue;
    // Custom rungs cannot be distinguished, so all of them are tried again.
    bool const may_come_again = rung.kind == oom::rung_kind::halve_micro_batch || rung.kind == oom::rung_kind::custom;
    return may_come_again ? index : index + 1;
  }
  return 0;
}

KEEL_BODY bool ladder_position::would_free_memory(oom::rung_settings const& rung, std::int64_t max_pieces) const {
  switch (rung.kind) {
    case oom::rung_kind::halve_micro_batch:
      return relief_.pieces < max_pieces;
    case oom::rung_kind::enable_recompute:
      return relief_.recompute != rung.recompute;
    case oom::rung_kind::fused_attention:
      return relief_.attention != attention_kind::fused;
    case oom::rung_kind::offload_optimizer:
      return !relief_.offload;
    case oom::rung_kind::quantize_base:
      return !relief_.quantized;
    case oom::rung_kind::shorten_sequence:
      return relief_.length == 0 || rung.length < relief_.length;
    default:
      return true;
  }
}

KEEL_BODY void ladder_position::push(oom::rung_settings const& rung) {
  taken_.push_back(static_cast<std::int64_t>(rung.kind));
  arguments_.push_back(argument_of(rung));
  fold();
}

KEEL_BODY void ladder_position::fold() {
  relief_ = begin_;
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    switch (static_cast<oom::rung_kind>(taken_[i])) {
      case oom::rung_kind::halve_micro_batch:
        if (relief_.pieces < std::int64_t{1} << 40) relief_.pieces *= 2;
        break;
      case oom::rung_kind::enable_recompute:
        if (arguments_[i] >= 0 && arguments_[i] <= static_cast<std::int64_t>(recompute_kind::non_reentrant))
          relief_.recompute = static_cast<recompute_kind>(arguments_[i]);
        break;
      case oom::rung_kind::fused_attention:
        relief_.attention = attention_kind::fused;
        break;
      case oom::rung_kind::offload_optimizer:
        relief_.offload = true;
        break;
      case oom::rung_kind::quantize_base:
        relief_.quantized = true;
        break;
      case oom::rung_kind::shorten_sequence:
        relief_.length = std::max<std::int64_t>(arguments_[i], 0);
        break;
      default:
        break;
    }
  }
}

KEEL_BODY char const* to_string(oom::rung_kind kind) {
  switch (kind) {
    case oom::rung_kind::none:
      return "none";
    case oom::rung_kind::halve_micro_batch:
      return "halve_micro_batch";
    case oom::rung_kind::enable_recompute:
      return "enable_recompute";
    case oom::rung_kind::offload_optimizer:
      return "offload_optimizer";
    case oom::rung_kind::fused_attention:
      return "fused_attention";
    case oom::rung_kind::quantize_base:
      return "quantize_base";
    case oom::rung_kind::shorten_sequence:
      return "shorten_sequence";
    case oom::rung_kind::give_up:
      return "give_up";
    case oom::rung_kind::custom:
      return "a custom rung";
  }
  return "unknown";
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
