// The collectives of a forward or backward pass under shard::zero<3>: gathers of units and buckets of gradients. If the last two passes had
// the same ones, the next one is expected to have them, too. Ranks that expect the same begin it with one exchange, instead of one before
// each collective, and start each gather while the unit before it computes.
#pragma once

#include <xxhash.h>

#include <keel/libtorch/mode.hpp>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// A collective of a pass: its phase (see replication.ipp), and the unit that is gathered or the bucket that is summed.
struct pass_collective {
  double phase, number;
  friend bool operator==(pass_collective const&, pass_collective const&) = default;
};

class collective_sequence {
 public:
  /// Call before a pass: forgets what an earlier one recorded without end().
  void begin() { current_.clear(); }
  void record(pass_collective one) { current_.push_back(one); }
  /// Call after a pass that was complete. One without collectives, as if the loss is not finite, says nothing about the next.
  void end() {
    if (current_.empty()) return;
    is_repeated_ = current_ == last_;
    std::swap(last_, current_);
    current_.clear();
  }
  /// Call when units or buckets changed.
  void forget() { *this = {}; }
  /// What the next pass is expected to have; empty if that is not known.
  std::span<pass_collective const> expected() const { return is_repeated_ ? last_ : std::span<pass_collective const>(); }
  /// True if the next pass is expected to begin with `first`, and nothing of it was recorded yet.
  bool begins_with(pass_collective first) const { return is_repeated_ && current_.empty() && last_.front() == first; }
  /// Identifies expected() among ranks; 0 if it is empty. A double represents it exactly.
  double checksum() const {
    static_assert(std::is_trivially_copyable_v<pass_collective> && sizeof(pass_collective) == 2 * sizeof(double));
    return is_repeated_ ? static_cast<double>((XXH3_64bits(last_.data(), last_.size() * sizeof(pass_collective)) >> 11) | 1U)
                        : 0.0;
  }

 private:
  std::vector<pass_collective> current_, last_;
  bool is_repeated_ = false;
};

}  // namespace keel::detail::inline KEEL_MODE
