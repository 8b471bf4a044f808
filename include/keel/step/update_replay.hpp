// An update's micro-batches as functions that can run again: after an out-of-memory the whole update begins again, because part
// of its gradients is lost. What runs again has not stepped the optimizer (O03). Of several ranks all begin again together, also
// those that had memory enough: they agree at the update's end, so that no rank waits for one that runs again (O01).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <keel/collective/agreed.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>
#include <keel/shard/replication.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class update_replay {
 public:
  /// One more micro-batch that can be cut into so many pieces; `run(index)` does its forward and backward pass.
  void add(std::int64_t max_pieces, std::function<void(std::int64_t)> run) {
    max_pieces_ = runs_.empty() ? max_pieces : std::max(max_pieces_, max_pieces);
    runs_.push_back(std::move(run));
  }
  void clear() {
    runs_.clear();
    next_ = 0;
    starved_.reset();
  }
  /// Into how many pieces the largest micro-batch of the update, or of the one before, can be cut.
  std::int64_t max_pieces() const { return max_pieces_; }
  /// Runs the micro-batches that have not run since the update began.
  void run_rest() {
    while (next_ < runs_.size()) {
      runs_[next_](static_cast<std::int64_t>(next_));
      ++next_;
    }
  }
  /// The update begins again: none of them has run.
  void rewind() { next_ = 0; }

  /// Calls `attempt()`; after an out-of-memory of any rank `take_rung(message)`, which puts the update back to its beginning,
  /// and then attempts again. What take_rung returns ends it. `complete`: no micro-batch is to come. `tell()`: memory ran out on this rank,
  /// and the others may be in a collective of the attempt.
  template <class World, class Attempt, class TakeRung, class Tell>
  std::optional<step_outcome> attempt_until_it_fits(World const& world, bool complete, Attempt const& attempt,
                                                    TakeRung const& take_rung, Tell const& tell) {
    for (;;) {
      bool is_of_other = false;
      if (!starved_) {
        try {
          attempt();
        } catch (std::exception const& thrown) {
          is_of_other = dynamic_cast<detail::memory_of_other_rank const*>(&thrown) != nullptr;
          if (!is_of_other && !is_out_of_memory(thrown)) throw;
          starved_ = first_line(thrown);
        }
      }
      // Recovery stands out here because a caught exception may keep frames and tensors alive.
      if (world.size() > 1) {
        if (!complete) return std::nullopt;
        if (starved_ && !is_of_other) tell();
        bool const any = agree(world, starved_.has_value()).value();
        if (any && !starved_) starved_ = "memory ran out on another rank";
      }
      if (!starved_) return std::nullopt;
      std::string const message = *std::exchange(starved_, std::nullopt);
      if (auto gave_up = take_rung(message)) return gave_up;
    }
  }

 private:
  std::vector<std::function<void(std::int64_t)>> runs_;
  std::size_t next_ = 0;
  std::int64_t max_pieces_ = 1;
  std::optional<std::string> starved_;  ///< memory ran out, and the ranks have not agreed on it yet
};

}  // namespace keel::inline KEEL_MODE
