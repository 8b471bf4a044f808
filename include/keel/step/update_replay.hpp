// Keeps the micro-batches of an update so that it can be retried. After an out-of-memory error the whole update is retried, because some of
// its gradients are lost. Only an update that has not stepped the optimizer is retried (O03). All ranks retry together, even those that had
// enough memory: they agree at the end of the update, so that no rank waits for one that retries (O01).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
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
  /// The largest number of pieces that any micro-batch of the open update, or of the previous one, can be split into.
  std::int64_t max_pieces() const { return max_pieces_; }
  /// Runs the micro-batches that have not run since the update began or was rewound.
  void run_rest(run_micro_batch run) {
    for (; next_ < all_.size(); ++next_) run(*all_[next_], static_cast<std::int64_t>(next_));
  }
  /// Marks all micro-batches as not run, for a retry.
  void rewind() { next_ = 0; }

  /// Calls `attempt()`. After an out-of-memory error on any rank, calls `take_rung(message)`, which restores the state from before the
  /// update, and retries. Returns the outcome if take_rung returns one, otherwise nullopt. `complete`: the last micro-batch is included.
  /// Only then is the call collective: with several ranks, a retry is postponed until the end of the update. Rethrows any other exception
  /// of `attempt`.
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
