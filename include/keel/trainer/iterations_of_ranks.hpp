// What several ranks decide together between the iterations of a run of parts: whether each has a batch, and what any of them was asked for. The
// parts agree on their own updates (shard/replication.hpp).
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <cstdint>
#include <filesystem>
#include <keel/collective/left_record.hpp>
#include <keel/collective/world_of_ranks.hpp>
#include <keel/config/config.hpp>
#include <keel/shard/numbers_of_ranks.hpp>
#include <keel/shard/rank_requests.hpp>
#include <keel/shard/straggler_watch.hpp>
#include <keel/trainer/options.hpp>
#include <optional>
#include <string>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Of one process: nothing happens, and nothing is asked for.
class iterations_of_ranks final : public rank_requests {
 public:
  /// Throws world_error (E24) on every rank for one with another recipe or length of the run, and says both.
  iterations_of_ranks(world_of_ranks world, config const& recipe, trainer_options const& options);
  /// Where an exception ends the run, the other ranks learn it.
  ~iterations_of_ranks();

  /// All ranks, before an iteration: the first rank that has no batch; -1: all have one. Throws world_error: E25 where a rank is gone, E26 where
  /// one is elsewhere, and names both places.
  int begin(bool has_batch, asked_of_ranks const& mine);
  /// All ranks, where the run ends, and how far it came. Throws as begin().
  void end(std::int64_t iterations, bool is_in_one, bool is_in_update);

  /// An exception that not all ranks have ends the training of this one: the others' collectives throw its words.
  void leave(char const* words) const noexcept {
    if (all_know()) return;
    std::string const& own = words_.empty() ? words : words_;
    leave_record(world_, directory_, own);
    world_.abort(own);
  }
  /// A call begins.
  void begin_call() { all_know_ = false, words_.clear(); }
  /// An exception with these words is on its way, which all ranks have, or this one.
  void threw(bool all_know, char const* words) {
    all_know_ = all_know;
    words_ = all_know ? "" : words;
  }

 private:
  std::optional<numbers_of_ranks> numbers_;  ///< of several
  busy_time busy_{world_};
  bool is_in_epoch_ = false;
  std::string words_;                ///< of the last exception, where only this rank has it
  std::filesystem::path directory_;  ///< of this rank; empty: it has none
  int unwinding_;                    ///< exceptions when it was built
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/iterations_of_ranks.ipp>
#endif
