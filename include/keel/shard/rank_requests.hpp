// What the ranks of a run learn of each other between its updates: who was asked to stop or to save, how long each took, and which exceptions all
// of them have.
#pragma once

#include <keel/collective/world_of_ranks.hpp>
#include <keel/shard/straggler_watch.hpp>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// What a rank is asked for between updates: by a signal, by its program, or by its clock.
struct pending_requests {
  int signal = 0;      ///< that asks for a stop; of several the highest
  bool stops = false;  ///< the program asks for a stop
  bool saves = false;
  bool thrashes = false;  ///< its allocator loses time, so that all take a rung
};

class rank_requests {
 public:
  explicit rank_requests(world_of_ranks world) : world_(std::move(world)) {}
  rank_requests(rank_requests const&) = delete;
  rank_requests& operator=(rank_requests const&) = delete;

  world_of_ranks const& world() const { return world_; }
  bool is_shared() const { return world_.size() > 1; }
  /// What any of them was asked for, as of the last agreement; nothing before the first.
  pending_requests const& requests() const { return requests_; }
  void clear_requests() { requests_ = {}; }
  bool take_save_request() { return std::exchange(requests_.saves, false); }
  /// Of the last agreement.
  rank_timing const& times() const { return times_; }
  /// The exception that ends the update is one that all ranks threw, and they can go on together. True where there is one rank.
  bool is_failure_collective() const { return is_failure_collective_ || !is_shared(); }
  /// The training of this rank ends with an exception: unless all of them end by it, the collectives of the others throw `message`.
  virtual void abort_peers(char const* message) const noexcept {
    if (!is_failure_collective()) world_.abort(message);
  }

 protected:
  ~rank_requests() = default;

  world_of_ranks world_;
  pending_requests requests_;
  rank_timing times_;
  bool is_failure_collective_ = false;
};

}  // namespace keel::detail::inline KEEL_MODE
