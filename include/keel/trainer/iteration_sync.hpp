// What several ranks decide together between the iterations of a run of parts: whether each has a batch, and what any of them was asked for. The
// parts agree on their own updates (shard/replication.hpp).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <cstdint>
#include <filesystem>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/collective/write_rank_record.hpp>
#include <keel/config/config.hpp>
#include <keel/shard/packed_agreement.hpp>
#include <keel/shard/rank_requests.hpp>
#include <keel/shard/straggler_watch.hpp>
#include <keel/trainer/options.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Of one process: nothing happens, and nothing is asked for.
class iteration_sync final : public rank_requests {
 public:
  /// Throws world_error (E24) on every rank for one with another recipe or length of the run, and says both.
  iteration_sync(world_of_ranks world, config const& recipe, trainer_options const& options);
  /// Where an exception ends the run, the other ranks learn it.
  ~iteration_sync();

  /// All ranks, before an iteration: the first rank that has no batch; -1: all have one. Throws world_error: E25 where a rank is gone, E26 where
  /// one is elsewhere, and names both places.
  int begin(bool has_batch, pending_requests const& local);
  /// All ranks, where the run ends, and how far it came. Throws as begin().
  void end(std::int64_t iterations, bool is_inside_iteration, bool is_in_update);

  /// Of the message of threw(), where there is one. This rank's record has it too.
  void abort_peers(char const* message) const noexcept override {
    if (is_failure_collective()) return;
    std::string const& own = message_.empty() ? message : message_;
    write_rank_record(world_, directory_, own);
    world_.abort(own);
  }
  /// A call begins.
  void begin_call() { is_failure_collective_ = false, message_.clear(); }
  /// An exception with these words is on its way, which all ranks have, or this one.
  void threw(bool is_failure_collective, char const* message) {
    is_failure_collective_ = is_failure_collective;
    message_ = is_failure_collective ? "" : message;
  }

 private:
  std::optional<packed_agreement> numbers_;  ///< of several
  busy_time busy_{world_};
  bool is_in_epoch_ = false;
  std::string message_;              ///< of the last exception, where only this rank has it
  std::filesystem::path directory_;  ///< of this rank; empty: it has none
  int unwinding_;                    ///< exceptions when it was built
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/iteration_sync.ipp>
#endif
