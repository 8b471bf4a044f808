// Definitions for packed_agreement.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/ops/zeros.h>
#include <xxhash.h>

#include <keel/collective/broadcast_string.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/shard/packed_agreement.hpp>
#include <utility>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY packed_agreement::packed_agreement(world_of_ranks world, std::string at)
    : world_(std::move(world)), local_(at::zeros({count}, at::kDouble)), all_(at::zeros({world_.size(), count}, at::kDouble)) {
  set_location(std::move(at));
}

KEEL_BODY void packed_agreement::set_location(std::string to) {
  place_ = std::move(to);
  // 53 bits, which a double represents exactly.
  local(place) = static_cast<double>(XXH3_64bits(place_.data(), place_.size()) >> 11);
}

KEEL_BODY int packed_agreement::first_mismatch(std::int64_t number) const {
  for (int rank = 1; rank < world_.size(); ++rank) {
    if (of(rank, number) != of(0, number)) return rank;
  }
  return -1;
}

KEEL_BODY void packed_agreement::begin(bool by_exception) {
  local(threw) = by_exception ? 1.0 : 0.0;
  failed_ = nullptr;
  under_way_ = begin_small_all_gather(world_, local_, all_);
}

KEEL_BODY bool packed_agreement::complete() noexcept {
  try {
    if (under_way_) world_.waiting([this] { std::exchange(under_way_, nullptr)->wait(); });
  } catch (...) {
    // Rethrown by wait(): autograd, in whose hook this runs, does not propagate every exception.
    failed_ = std::current_exception();
  }
  return !failed_;
}

KEEL_BODY bool packed_agreement::is_done() { return (!under_way_ || under_way_->is_done()) && first_mismatch(place) < 0; }

KEEL_BODY void packed_agreement::wait(std::string const& message) {
  if (failed_) std::rethrow_exception(failed_);
  if (under_way_) world_.waiting([this] { std::exchange(under_way_, nullptr)->wait(); });
  int const other = first_mismatch(place);
  if (other < 0) return;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (of(rank, threw) == 0.0) continue;
    throw world_error("E25", "rank " + std::to_string(rank) + " threw at " + broadcast_string(world_, place_, rank) + ": " +
                                 broadcast_string(world_, message, rank));
  }
  std::string const of_first = broadcast_string(world_, place_, 0);
  std::string const of_other = broadcast_string(world_, place_, other);
  throw world_error("E26", "rank " + std::to_string(other) + " is at " + of_other + ", and rank 0 at " + of_first +
                               ": the ranks made different calls. Make the same calls in the same order on all ranks.");
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
