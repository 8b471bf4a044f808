// Definitions for process_group.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <c10/util/ScopeExit.h>

#include <cstdint>
#include <functional>
#include <keel/collective/call_with_timeout.hpp>
#include <keel/collective/process_group.hpp>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

inline constexpr char const* abort_message_key = "keel/given_up";
inline constexpr char const* any_failed_key = "keel/any_failed";
/// Store keys of a rank: its failure report, its heartbeat, and the mark that it has read the others' reports.
inline std::string failed_key(int rank) { return "keel/failed/" + std::to_string(rank); }
inline std::string heartbeat_key(int rank) { return "keel/lives/" + std::to_string(rank); }
inline std::string read_key(int rank) { return "keel/read/" + std::to_string(rank); }

inline void put(c10d::Store& store, std::string const& key, std::string const& message) {
  store.set(key, std::vector<std::uint8_t>(message.begin(), message.end()));
}
/// Returns the value of the key; empty if it is not set.
inline std::string read_key_or_empty(c10d::Store& store, std::string const& key) {
  if (!store.check({key})) return "";
  auto const bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}
/// Polls until `is_done()` returns true or `deadline` passes.
template <class IsDone>
void wait_until(std::chrono::steady_clock::time_point deadline, IsDone const& is_done) {
  while (!is_done() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

KEEL_BODY std::optional<std::vector<std::int64_t>> exchange_heartbeats_in(
    c10::intrusive_ptr<c10d::Store> const& store, int rank, int size, std::int64_t local,
    std::shared_ptr<std::atomic<bool>> const& is_query_pending) {
  if (!store) return std::vector<std::int64_t>();
  // At most one query at a time: with a store that does not answer, each would leave a blocked thread.
  if (is_query_pending->exchange(true)) return std::nullopt;
  auto const ask = [store, rank, size, local, is_query_pending] {
    auto const ends = c10::make_scope_exit([&] { is_query_pending->store(false); });
    put(*store, heartbeat_key(rank), std::to_string(local));
    std::vector<std::string> all(static_cast<std::size_t>(size), std::to_string(transport::heartbeat_not_polled));
    // Each rank polls only the next four: if all polled all, the store would get O(size^2) requests.
    for (int behind = 1; behind <= std::min(4, size - 1); ++behind) {
      int const one = (rank + behind) % size;
      std::string const found = read_key_or_empty(*store, heartbeat_key(one));
      all[static_cast<std::size_t>(one)] = found.empty() ? "-1" : found;
    }
    std::string message;
    for (std::string const& one : all) message += one + " ";
    return message;
  };
  try {
    auto const message = call_with_timeout<std::string>(std::chrono::seconds(1), ask);
    if (!message) return std::nullopt;
    std::istringstream numbers(*message);
    std::vector<std::int64_t> found;
    for (std::int64_t one = 0; numbers >> one;) found.push_back(one);
    return found;
  } catch (std::exception const&) {
    // The store is unreachable, or no thread could be started. The caller treats this like a store that does not answer.
    is_query_pending->store(false);
    return std::nullopt;
  }
}

KEEL_BODY bool has_any_rank_failed(c10::intrusive_ptr<c10d::Store> const& store,
                                   std::shared_ptr<std::atomic<bool>> const& is_query_pending) {
  if (is_query_pending->exchange(true)) return false;
  try {
    auto const found = call_with_timeout<bool>(std::chrono::milliseconds(200), [store, is_query_pending] {
      auto const ends = c10::make_scope_exit([&] { is_query_pending->store(false); });
      return store->check({any_failed_key});
    });
    return found.value_or(false);
  } catch (std::exception const&) {
    // Either the store is gone together with the rank that served it, which a collective detects itself, or no thread could be started.
    is_query_pending->store(false);
    return false;
  }
}

KEEL_BODY void store_failure_message(c10::intrusive_ptr<c10d::Store> const& store, int rank, std::string const& why) {
  if (!store) return;
  std::string const message = "rank " + std::to_string(rank) + " has given up: " + why;
  static_cast<void>(call_with_timeout<std::string>(std::chrono::seconds(1), [store, rank, message] {
    store->compareSet(abort_message_key, std::vector<std::uint8_t>(),
                      std::vector<std::uint8_t>(message.begin(), message.end()));
    put(*store, failed_key(rank), "aborted");
    put(*store, any_failed_key, "yes");
    put(*store, read_key(rank), "yes");
    return std::string();
  }));
}

inline std::string describe_call(issued_collective const& one) {
  return std::string(one.what) + ", collective number " + std::to_string(one.number) +
         (one.elements > 0 ? ", of " + std::to_string(one.elements) + (one.elements == 1 ? " element" : " elements") : "");
}
/// Formats a rank's failure report: the failed collective, then its most recent collectives, one per line.
inline std::string describe_issued(issued_collective const& failed, issued_collectives const& called) {
  std::string lines = describe_call(failed);
  for (issued_collective const& one : called) {
    if (one.number > 0) lines += "\n" + std::to_string(one.number) + " " + describe_call(one);
  }
  return lines;
}
inline std::string first_line_in(std::string const& lines) { return lines.substr(0, lines.find('\n')); }
/// Returns the call in the report `remote` that differs from the collective with the same number in `local`; empty if there is none.
inline std::string find_divergent_call(std::string const& remote, issued_collectives const& local) {
  for (issued_collective const& one : local) {
    std::string const turn = "\n" + std::to_string(one.number) + " ";
    std::size_t const at = one.number > 0 ? remote.find(turn) : std::string::npos;
    if (at == std::string::npos) continue;
    std::string const there = first_line_in(remote.substr(at + turn.size()));
    if (there != describe_call(one)) return there;
  }
  return "";
}

/// Diagnoses a failed collective from the store: the message of a rank that aborted, else the ranks that did not report the failure within
/// a second, else a rank that called a different collective. `local` holds this rank's most recent collectives.
inline collective_failure diagnose_from_store(c10d::Store& store, int rank, int size, issued_collectives const& local) {
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::string message, missing;
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  wait_until(deadline, [&] {
    if (message.empty()) message = read_key_or_empty(store, abort_message_key);
    missing.clear();
    for (int one = 0; one < size; ++one) {
      std::string& remote = said[static_cast<std::size_t>(one)];
      if (remote.empty()) remote = read_key_or_empty(store, failed_key(one));
      if (remote.empty()) missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(one);
    }
    return missing.empty() || (rank != 0 && !message.empty());
  });
  put(store, read_key(rank), "yes");
  // Rank 0 may serve the store: it waits until the ranks that reported a failure have read the reports, up to another second.
  for (int one = 1; rank == 0 && one < size; ++one) {
    if (!said[static_cast<std::size_t>(one)].empty())
      wait_until(deadline + std::chrono::seconds(1), [&] { return store.check({read_key(one)}); });
  }
  if (!message.empty()) return {false, message};
  if (!missing.empty())
    return {false, missing + (missing.find(',') == std::string::npos ? " is" : " are") + " gone or hanging"};
  for (int one = 0; one < size; ++one) {
    std::string const otherwise = find_divergent_call(said[static_cast<std::size_t>(one)], local);
    if (!otherwise.empty()) return {true, "rank " + std::to_string(one) + " is at " + otherwise};
  }
  return {false, "all ranks are alive: the network between them failed, or a rank was too late"};
}

KEEL_BODY collective_failure diagnose_failure(int rank, int size, issued_collective const& failed,
                                              issued_collectives const& called, std::exception const& thrown,
                                              c10::intrusive_ptr<c10d::Store> const& store) {
  std::string reason = thrown.what();
  reason = reason.substr(0, reason.find('\n'));
  // Drop the source location of LibTorch or Gloo: "[../gloo/transport/tcp/pair.cc:589] ".
  if (reason.starts_with("[") && reason.find("] ") != std::string::npos) reason = reason.substr(reason.find("] ") + 2);
  collective_failure found{false, "a rank is gone, too late, or called a different collective"};
  try {
    if (store) {
      auto const leave = [store, rank, lines = describe_issued(failed, called)] {
        put(*store, failed_key(rank), lines);
        put(*store, any_failed_key, "yes");
        return store->check({failed_key(rank)});
      };
      auto const ask = [store, rank, size, called] { return diagnose_from_store(*store, rank, size, called); };
      // Bounds how long a failing rank takes to exit beyond the timeout: 0.8 s to publish, then at most 4 s to read.
      std::optional<collective_failure> answer;
      if (call_with_timeout<bool>(std::chrono::milliseconds(800), leave)) {
        // diagnose_from_store waits up to two seconds itself; the rest is slack for a busy machine.
        answer = call_with_timeout<collective_failure>(std::chrono::seconds(4), ask);
      }
      found = answer.value_or(collective_failure{
          false, "the store does not respond: the process that serves it (the launcher, or rank 0) is gone or hanging"});
    }
  } catch (std::exception const&) {
    found.message = "the store is unreachable: the process that serves it (the launcher, or rank 0) is gone or hanging";
  }
  found.message = "rank " + std::to_string(rank) + " of " + std::to_string(size) + " cannot complete " + describe_call(failed) +
                  ": " + found.message + " (" + reason + "). Check the output of the other ranks, then restart all ranks.";
  return found;
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
