// The collectives that the next pass of a micro-batch or an evaluation is expected to have under shard::zero<3>: gathers of units and
// buckets of gradients. If the last two passes of a kind had the same ones, the next one is expected to have them, too. Ranks that expect
// the same begin it with one exchange, instead of one before each collective, and start each gather while the unit before it computes.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <keel/libtorch/mode.hpp>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// Where a rank is in its micro-batch. Ranks that are behind take part in the collectives of those in a higher phase first.
namespace pass_phase {
inline constexpr double agreement = 0.0, evaluation = 0.5, forward = 1.0, backward_begins = 2.0, bucket = 3.0, backward = 4.0;
/// True if ranks in this phase may gather different units, which then take turns: a graph may differ between ranks, and memory may run out
/// in an evaluation of one.
inline bool takes_turns(double phase) { return phase == backward || phase == evaluation; }
}  // namespace pass_phase

/// A collective of a pass: its phase, and the unit that is gathered or the bucket that is summed.
struct pass_collective {
  double phase, number;
  bool is_bucket() const { return phase == pass_phase::bucket; }
  friend bool operator==(pass_collective const&, pass_collective const&) = default;
};

class expected_passes {
 public:
  expected_passes() = default;
  expected_passes(expected_passes const&) = delete;
  expected_passes& operator=(expected_passes const&) = delete;

  /// Call before the passes of a micro-batch.
  void begin_forward() {
    forward_.begin();
    backward_.begin();
    current_ = &forward_;
    has_deviated_ = false;
  }
  /// Call once the ranks have agreed on the backward pass, also if that of this rank has ended.
  void begin_backward() {
    if (current_ == &forward_) current_ = &backward_;
    has_deviated_ = false;
  }
  /// Call before each batch of an evaluation.
  void begin_evaluation() {
    evaluation_.end();
    evaluation_.begin();
    current_ = &evaluation_;
  }
  bool is_in_evaluation() const { return current_ == &evaluation_; }
  /// Call after the last batch of an evaluation.
  void end_evaluation() {
    evaluation_.end();
    leave();
  }
  /// Call after the passes of a micro-batch that were complete.
  void end_micro_batch() {
    forward_.end();
    backward_.end();
    leave();
  }
  /// Call when the passes have ended: what follows is not recorded.
  void leave() {
    current_ = nullptr;
    has_deviated_ = false;
  }
  bool is_inside() const { return current_ != nullptr; }
  /// Call when units or buckets changed, or if parameters may be written inside of a pass.
  void forget() {
    for (sequence* const one : {&forward_, &backward_, &evaluation_}) *one = {};
    expected_ = {};
  }
  void forget_backward() { backward_ = {}; }

  /// Records a collective of the present pass.
  void record(pass_collective one) {
    if (current_ != nullptr) current_->collectives.push_back(one);
  }
  /// True if `first` is expected to begin the present pass, which is not a backward pass, and nothing of it was recorded yet.
  bool may_begin_with(pass_collective first) const {
    return current_ != nullptr && current_ != &backward_ && current_->is_repeated && current_->collectives.empty() &&
           current_->last.front() == first;
  }
  /// Identifies what is expected of the present pass, or of the backward pass, among ranks; 0 if that is not known.
  double checksum() const { return present().checksum(); }
  double backward_checksum() const { return backward_.checksum(); }
  /// Call after an exchange in which all ranks sent this checksum.
  void expect(double checksum) {
    if (checksum != 0.0 && checksum == present().checksum()) expected_ = present().last;
  }
  /// The next expected collective; null if none is left. Buckets are removed once they are begun: the first `begun_buckets`.
  pass_collective const* next(std::size_t begun_buckets) {
    while (!expected_.empty() && expected_.front().is_bucket() && expected_.front().number < static_cast<double>(begun_buckets))
      expected_ = expected_.subspan(1);
    return expected_.empty() ? nullptr : expected_.data();
  }
  /// The gather after the next collective; null if there is none.
  pass_collective const* gather_after_next() const {
    auto const found = std::find_if(expected_.begin() + 1, expected_.end(), [](auto const& one) { return !one.is_bucket(); });
    return found == expected_.end() ? nullptr : &*found;
  }
  /// Removes the next collective.
  void pop() { expected_ = expected_.subspan(1); }
  /// Call when this rank has another collective than the next expected one.
  void deviate() { has_deviated_ = has_deviated_ || current_ == &forward_ || current_ == &backward_; }
  bool has_deviated() const { return has_deviated_; }

 private:
  struct sequence {
    std::vector<pass_collective> collectives = {};  ///< of the present pass
    std::vector<pass_collective> last = {};         ///< of the last complete one
    bool is_repeated = false;                       ///< by the last two

    void begin() { collectives.clear(); }
    /// A pass without collectives, as if the loss is not finite, says nothing about the next.
    void end() {
      if (collectives.empty()) return;
      is_repeated = collectives == last;
      std::swap(last, collectives);
      collectives.clear();
    }
    /// A double represents it exactly.
    double checksum() const {
      static_assert(std::is_trivially_copyable_v<pass_collective> && sizeof(pass_collective) == 2 * sizeof(double));
      return is_repeated ? static_cast<double>((XXH3_64bits(last.data(), last.size() * sizeof(pass_collective)) >> 11) | 1U)
                         : 0.0;
    }
  };
  /// After the end of this rank's passes the others may be in their backward passes.
  sequence const& present() const { return current_ == nullptr ? backward_ : *current_; }

  sequence forward_, backward_, evaluation_;
  sequence* current_ = nullptr;                ///< one of these
  std::span<pass_collective const> expected_;  ///< what is left of the pass that all ranks expect
  bool has_deviated_ = false;                  ///< this rank's pass is not the expected one
};

}  // namespace keel::detail::inline KEEL_MODE
