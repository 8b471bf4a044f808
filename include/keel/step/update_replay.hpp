// An update's micro-batches as objects that can run again: after an out-of-memory the whole update begins again, because part
// of its gradients is lost. What runs again has not stepped the optimizer (O03). Of several ranks all begin again together, also
// those that had memory enough: they agree at the update's end, so that no rank waits for one that runs again (O01).
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <keel/core/outcome.hpp>
#include <keel/shard/replication.hpp>
#include <keel/step/any_micro_batch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

class update_replay {
 public:
  using run_micro_batch = c10::function_ref<void(any_micro_batch&, std::int64_t index)>;

  void add(std::unique_ptr<any_micro_batch> batch) {
    max_pieces_ = all_.empty() ? batch->max_pieces() : std::max(max_pieces_, batch->max_pieces());
    all_.push_back(std::move(batch));
  }
  void clear() {
    all_.clear();
    next_ = 0;
    out_of_memory_message_.reset();
  }
  /// Into how many pieces the largest micro-batch of the update, or of the one before, can be cut.
  std::int64_t max_pieces() const { return max_pieces_; }
  /// Runs the micro-batches that have not run since the update began.
  void run_rest(run_micro_batch run) {
    for (; next_ < all_.size(); ++next_) run(*all_[next_], static_cast<std::int64_t>(next_));
  }
  /// The update begins again: none of them has run.
  void rewind() { next_ = 0; }

  /// Calls `attempt()`; after an out-of-memory of any rank `take_rung(message)`, which puts the update back to its beginning,
  /// and then attempts again. What take_rung returns ends it. `complete`: no micro-batch is to come. Throws what `attempt` throws otherwise.
  std::optional<step_outcome> retry_on_out_of_memory(
      replication& ranks, bool complete, c10::function_ref<void()> attempt,
      c10::function_ref<std::optional<step_outcome>(std::string const& message)> take_rung);

 private:
  std::vector<std::unique_ptr<any_micro_batch>> all_;
  std::size_t next_ = 0;
  std::int64_t max_pieces_ = 1;
  std::optional<std::string> out_of_memory_message_;  ///< memory ran out, and the ranks have not agreed on it yet
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/update_replay.ipp>
#endif
