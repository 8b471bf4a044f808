// keel::world_of_ranks: the processes that train together, as a value.
//     keel::world_of_ranks alone;                                   this process; its collectives do nothing
//     keel::world_of_ranks world = keel::join();                    those of the launcher (collective/join.hpp)
//     keel::world_of_ranks world = keel::over(group, 60s);          a c10d group that the program has
//     keel::world_of_ranks world = keel::over(hosts, make_group);   the same for tensors on devices (collective/device_group.hpp)
//     keel::run_in_process(4, [](keel::world_of_ranks world) {..})  ranks of one process, for tests (collective/in_process.hpp)
// Copies are the same world. Its collectives (collective/collectives.hpp) are made by all ranks, in the same order, by one thread of each at a time.
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

/// The processes that train together. All ranks make the same collectives in the same order; what one throws is world_error (E25)
/// where a rank is gone or too late, (E26) where ranks make different calls.
class world_of_ranks {
 public:
  /// This process alone.
  world_of_ranks() = default;
  /// Of a transport that the program has written.
  explicit world_of_ranks(std::shared_ptr<detail::transport> backend);

  /// Of this process, from 0.
  int rank() const { return state_ == nullptr ? 0 : state_->backend->rank(); }
  /// Processes of the world.
  int size() const { return state_ == nullptr ? 1 : state_->backend->size(); }
  /// How long a collective waits for the other ranks.
  std::chrono::milliseconds timeout() const {
    return state_ == nullptr ? std::chrono::milliseconds(0) : state_->backend->timeout();
  }
  /// Collectives so far.
  std::int64_t collectives() const { return state_ == nullptr ? 0 : state_->count; }
  /// Of what each of them was, in order: the same on all ranks that did the same.
  std::uint64_t fingerprint() const { return state_ == nullptr ? 0 : state_->fingerprint; }

  /// The ranks' values as one: a bool, an integer or a floating-point number. A sum and a mean are of doubles, in the order of the ranks,
  /// and the others exact; a NaN of one rank is everyone's. All ranks call it.
  template <reduction Reduction, class Value>
    requires std::is_arithmetic_v<Value>
  Value combine(Reduction, Value const& local) const;

  /// The others' collectives throw world_error (E25) with these words, and this rank's do; for one that ends in the middle.
  void abort(std::string const& why) const noexcept {
    if (state_ != nullptr) state_->backend->abort(why);
  }

  /// From another thread, in the last moment of a process whose own one hangs: the others' collectives throw these words.
  void post_abort_message(std::string const& why) const noexcept {
    if (state_ != nullptr) state_->backend->post_abort_message(why);
  }
  /// From another thread: what detail::transport says of it.
  std::optional<std::vector<std::int64_t>> exchange_heartbeats(std::int64_t local) const {
    return state_ == nullptr ? std::vector<std::int64_t>() : state_->backend->exchange_heartbeats(local);
  }
  /// There is a place for exchange_heartbeats, or no need of one.
  bool supports_heartbeats() const { return state_ == nullptr || state_->backend->supports_heartbeats(); }
  /// No collective waits longer than this for the others, nor than it would have.
  void limit(std::chrono::milliseconds longest) const {
    if (state_ != nullptr) state_->backend->limit(longest);
  }

  /// What `run` takes counts as waiting for other ranks.
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
  /// So far.
  std::chrono::steady_clock::duration waited() const {
    return state_ == nullptr ? std::chrono::steady_clock::duration() : state_->waited;
  }

  /// What carries its collectives; null for a process alone.
  detail::transport* backend() const { return state_ == nullptr ? nullptr : state_->backend.get(); }
  /// Null for a process alone. Counts a collective, `what`, a literal, of so many elements.
  detail::transport* begin(char const* what, std::int64_t elements) const;
  /// The collective of this number, or the last, has come to its end.
  void completed(std::int64_t collective) const {
    if (state_ != nullptr) state_->last.completed(collective);
  }
  /// The last collective has come to its end.
  void completed() const { completed(collectives()); }
  /// The next collectives are behind so many updates.
  void set_current_update(std::int64_t updates) const {
    if (state_ != nullptr) state_->last.set_current_update(updates);
  }
  /// Also from another thread: the last ones, the oldest first.
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
  /// Of all ranks, in their order.
  std::vector<double> gather(double local) const;
  std::vector<std::int64_t> gather(std::int64_t local) const;

  std::shared_ptr<shared> state_;
};

template <reduction Reduction, class Value>
  requires std::is_arithmetic_v<Value>
Value world_of_ranks::combine(Reduction, Value const& local) const {
  if (state_ == nullptr) return local;
  constexpr bool adds = std::same_as<Reduction, reduce::sum> || std::same_as<Reduction, reduce::mean>;
  // NaN compares with nothing, so that one rank's would be lost.
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
