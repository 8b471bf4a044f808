// State that the ranks of a run share between updates: stop and save requests, the time of each rank, and whether a failure is collective.
#pragma once

#include <keel/collective/world_of_ranks.hpp>
#include <keel/shard/straggler_watch.hpp>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// Requests to a rank between updates: by a signal, the program or a timer.
struct pending_requests {
  int signal = 0;      ///< signal that requests a stop, the highest of several; 0: none
  bool stops = false;  ///< the program requests a stop
  bool saves = false;
  bool thrashes = false;  ///< its allocator is thrashing: all ranks take a rung
};

class rank_requests {
 public:
  explicit rank_requests(world_of_ranks world) : world_(std::move(world)) {}
  rank_requests(rank_requests const&) = delete;
  rank_requests& operator=(rank_requests const&) = delete;

  world_of_ranks const& world() const { return world_; }
  bool is_shared() const { return world_.size() > 1; }
  /// The requests to any rank as of the last agreement; none before the first.
  pending_requests const& requests() const { return requests_; }
  void clear_requests() { requests_ = {}; }
  bool take_save_request() { return std::exchange(requests_.saves, false); }
  /// The times of the ranks at the last agreement.
  rank_timing const& times() const { return times_; }
  /// Returns true if all ranks throw because of the failure that ends the update, so that they stay in step. Always true with one rank.
  bool is_failure_collective() const { return is_failure_collective_ || !is_shared(); }
  /// Call when an exception ends this rank's training: unless the failure is collective, the collectives of the others throw `message`.
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
