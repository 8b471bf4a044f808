// keel::world_of_ranks: a handle to the processes that train together.
//     keel::world_of_ranks alone;                                   this process; its collectives do nothing
//     keel::world_of_ranks world = keel::join();                    the processes that the launcher started (collective/join.hpp)
//     keel::world_of_ranks world = keel::over(group, 60s);          a c10d process group that you created
//     keel::world_of_ranks world = keel::over(hosts, make_group);   a separate group for device tensors (collective/device_group.hpp)
//     keel::run_in_process(4, [](keel::world_of_ranks world) {..})  ranks as threads, for tests (collective/in_process.hpp)
// Copies refer to the same world. All ranks must call its collectives (collective/collectives.hpp) in the same order. On each rank only one
// thread at a time may call them.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <keel/collective/recent_collectives.hpp>
#include <keel/collective/transport.hpp>
#include <keel/collective/world.hpp>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

/// The processes that train together. All ranks must call the same collectives in the same order. Collectives throw world_error: E25 if a
/// rank exited or timed out, E26 if ranks make different calls. Not thread-safe unless a member says so.
class world_of_ranks {
 public:
  /// Creates the world of this process alone.
  world_of_ranks() = default;
  /// Creates a world on a transport that the program implements.
  explicit world_of_ranks(std::shared_ptr<detail::transport> backend);

  /// Rank of this process, from 0.
  int rank() const { return state_ == nullptr ? 0 : state_->backend->rank(); }
  /// Number of processes.
  int size() const { return state_ == nullptr ? 1 : state_->backend->size(); }
  /// How long a collective waits for the other ranks.
  std::chrono::milliseconds timeout() const {
    return state_ == nullptr ? std::chrono::milliseconds(0) : state_->backend->timeout();
  }
  /// Number of collectives that this rank has called.
  std::int64_t collectives() const { return state_ == nullptr ? 0 : state_->count; }
  /// Hash of the sequence of collectives so far (operation and size): equal on ranks that made the same calls.
  std::uint64_t fingerprint() const { return state_ == nullptr ? 0 : state_->fingerprint; }

  /// Reduces a bool, integer or floating-point number over all ranks. Collective: all ranks must call it. Floating-point sums, and all
  /// means, are computed in double, in rank order; the other reductions are exact. A NaN on any rank makes the result NaN.
  template <reduction Reduction, class Value>
    requires std::is_arithmetic_v<Value>
  Value combine(Reduction, Value const& local) const;

  /// Aborts communication, on a rank that ends early: collectives of the other ranks, and later ones of this rank, throw world_error (E25)
  /// with this message.
  void abort(std::string const& why) const noexcept {
    if (state_ != nullptr) state_->backend->abort(why);
  }

  /// Publishes a message; the other ranks' collectives then throw an error that contains it. May be called from another thread, when the
  /// training thread hangs and the process is about to exit.
  void post_abort_message(std::string const& why) const noexcept {
    if (state_ != nullptr) state_->backend->post_abort_message(why);
  }
  /// Publishes this rank's heartbeat and returns those of all ranks; see detail::transport. May be called from another thread.
  std::optional<std::vector<std::int64_t>> exchange_heartbeats(std::int64_t local) const {
    return state_ == nullptr ? std::vector<std::int64_t>() : state_->backend->exchange_heartbeats(local);
  }
  /// Returns true if heartbeats can be exchanged, or if there are no other ranks to exchange them with.
  bool supports_heartbeats() const { return state_ == nullptr || state_->backend->supports_heartbeats(); }
  /// Lowers the timeout of collectives to `longest`; never raises it.
  void limit(std::chrono::milliseconds longest) const {
    if (state_ != nullptr) state_->backend->limit(longest);
  }

  /// Runs `run` and adds its duration to waited(). Returns its result.
  template <class Run>
  auto waiting(Run const& run) const {
    struct counted {
      world_of_ranks const& of;
      std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
      ~counted() {
        if (of.state_ != nullptr) of.state_->waited += std::chrono::steady_clock::now() - began;
      }
    } const ends{*this};
    return run();
  }
  /// Total time that this rank has waited for others inside waiting().
  std::chrono::steady_clock::duration waited() const {
    return state_ == nullptr ? std::chrono::steady_clock::duration() : state_->waited;
  }

  /// The communication backend; null for a single process.
  detail::transport* backend() const { return state_ == nullptr ? nullptr : state_->backend.get(); }
  /// Records a collective and returns the backend that runs it; null for a single process. `what` must be a string literal.
  detail::transport* begin(char const* what, std::int64_t elements) const;
  /// Records that the collective with this number has completed.
  void mark_completed(std::int64_t collective) const {
    if (state_ != nullptr) state_->last.mark_completed(collective);
  }
  /// Records that the last collective has completed.
  void mark_completed() const { mark_completed(collectives()); }
  /// Sets the number of completed updates that is recorded with each following collective.
  void set_current_update(std::int64_t updates) const {
    if (state_ != nullptr) state_->last.set_current_update(updates);
  }
  /// Returns the most recent collectives, oldest first. May be called from another thread.
  std::vector<detail::recent_collective> last_collectives() const {
    return state_ == nullptr ? std::vector<detail::recent_collective>() : state_->last.all();
  }

 private:
  struct shared {
    std::shared_ptr<detail::transport> backend;
    std::int64_t count = 0;
    std::uint64_t fingerprint = 0;
    std::chrono::steady_clock::duration waited{};
    detail::recent_collectives last;
  };
  /// Returns the values of all ranks, in rank order. Collective.
  std::vector<double> gather(double local) const;
  std::vector<std::int64_t> gather(std::int64_t local) const;

  std::shared_ptr<shared> state_;
};

template <reduction Reduction, class Value>
  requires std::is_arithmetic_v<Value>
Value world_of_ranks::combine(Reduction, Value const& local) const {
  if (state_ == nullptr) return local;
  constexpr bool adds = std::same_as<Reduction, reduce::sum> || std::same_as<Reduction, reduce::mean>;
  // Comparisons with NaN are false, so std::min and std::max would lose it.
  auto const find_extremum = [](auto const& all) {
    auto result = all.front();
    for (auto const one : all) {
      if (result != result || one != one) {
        result = result != result ? result : one;
      } else if constexpr (std::same_as<Reduction, reduce::min>) {
        if (one < result) result = one;
      } else {
        if (one > result) result = one;
      }
    }
    return result;
  };
  if constexpr (std::is_integral_v<Value> && !std::same_as<Reduction, reduce::mean>) {
    auto const all = gather(static_cast<std::int64_t>(local));
    if constexpr (!adds) return static_cast<Value>(find_extremum(all));
    std::int64_t sum = 0;
    for (std::int64_t const one : all) sum += one;
    return static_cast<Value>(sum);
  } else {
    auto const all = gather(static_cast<double>(local));
    if constexpr (!adds) return static_cast<Value>(find_extremum(all));
    double sum = 0.0;
    for (double const one : all) sum += one;
    return static_cast<Value>(std::same_as<Reduction, reduce::mean> ? sum / static_cast<double>(all.size()) : sum);
  }
}

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/collective/world_of_ranks.ipp>
#endif
