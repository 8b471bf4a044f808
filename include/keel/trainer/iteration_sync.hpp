// Synchronizes the ranks of a run of several models between iterations: which ranks have a batch, and which stop and save requests are
// pending. The parts synchronize their own updates (shard/replication.hpp).
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

/// With a single rank, calls no collective and exchanges no requests.
class iteration_sync final : public rank_requests {
 public:
  /// Collective. Throws world_error (E24) on all ranks if recipes or run lengths differ between ranks; the message shows both values.
  iteration_sync(world_of_ranks world, config const& recipe, trainer_options const& options);
  /// Aborts the other ranks if an exception is unwinding the stack.
  ~iteration_sync();

  /// Collective, before each iteration: exchanges requests and returns the first rank without a batch, or -1. Throws world_error: E25 if a
  /// rank has failed or exited, E26 if one makes a different call; the message names both calls.
  int begin(bool has_batch, pending_requests const& local);
  /// Collective, at the end of the run: verifies that all ranks end it here. The arguments describe this rank's position in an E26 message.
  /// Throws the same as begin().
  void end(std::int64_t iterations, bool is_inside_iteration, bool is_in_update);

  /// Aborts the world and writes this rank's record, with the message of record_exception() if there is one, else with `message`.
  void abort_peers(char const* message) const noexcept override {
    if (is_failure_collective()) return;
    std::string const& own = message_.empty() ? message : message_;
    write_rank_record(world_, directory_, own);
    world_.abort(own);
  }
  /// Forgets the exception that the last call recorded.
  void begin_call() { is_failure_collective_ = false, message_.clear(); }
  /// Records the exception in flight for abort_peers(). `is_failure_collective`: all ranks throw it; else only this one.
  void record_exception(bool is_failure_collective, char const* message) {
    is_failure_collective_ = is_failure_collective;
    message_ = is_failure_collective ? "" : message;
  }

 private:
  std::optional<packed_agreement> numbers_;  ///< only with several ranks
  busy_time busy_{world_};
  bool is_in_epoch_ = false;
  std::string message_;              ///< message of the last exception, if only this rank threw it
  std::filesystem::path directory_;  ///< run directory, absolute; empty: there is none
  int unwinding_;                    ///< exceptions in flight at construction
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/iteration_sync.ipp>
#endif
