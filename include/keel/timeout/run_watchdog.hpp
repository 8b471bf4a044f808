// The watchdog thread of keel::timeout. It never blocks, except, with a heartbeat, up to one second on the ranks' store.
//   soft          no update, save or evaluation batch has completed for this long: reports a stall once, with the training thread's stack
//   longest_save  replaces soft and hard, if it is longer, while a checkpoint is saved
//   hard          no progress for this long: writes all stacks to `no_progress.txt` in the run directory and a `failed` event (E27) to
//                 events.jsonl, notifies the other ranks and the launcher, and exits with exit_code::no_progress
//   first_update  replaces both until the process has made its first update, which includes setup and compilation
//   heartbeat     with several ranks: each publishes a heartbeat at this interval while its trainer exists. During a run, if a rank has
//                 published none for the limit, names it and exits with exit_code::rank_failed, before the collective would time out
//   force_exit    a signal requested a stop this long ago and the run has not ended: exits with 128 + the signal number
// Completed checkpoints survive such an exit, because they become visible by a rename.
// Not supported: cancelling only the update, because the code that hangs cannot be interrupted.
#pragma once

#include <sys/types.h>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <keel/metrics/phase_times.hpp>
#include <keel/policy/timeout.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The watchdog's access to its run. The functions are called on the watchdog's thread.
struct watchdog_target {
  std::filesystem::path directory{};  ///< run directory; empty: none
  int rank = 0;
  int ranks = 1;
  std::function<std::optional<run_phase>()> phase{};  ///< current phase; must not block
  std::function<int()> signal{};                      ///< signal that requests a stop; 0: none
  std::function<void(std::string)> notify_ranks{};    ///< publishes why this process exits
  std::function<std::string()> collective{};          ///< describe_current_collective; null: one rank
  /// Publishes this rank's heartbeat and returns those of all ranks, as world_of_ranks::exchange_heartbeats.
  std::function<std::optional<std::vector<std::int64_t>>(std::int64_t)> exchange_heartbeats{};
};

constexpr bool has_timeouts(timeout::settings const& limits) {
  return limits.soft > 0 || limits.hard > 0 || limits.first_update > 0 || limits.force_exit > 0 ||
         limits.heartbeat_interval > 0;
}

/// Watches a run in a thread of this process. Starts no thread if `limits` sets no limit.
class run_watchdog {
 public:
  run_watchdog(timeout::settings const& limits, watchdog_target of);
  run_watchdog(run_watchdog const&) = delete;
  run_watchdog& operator=(run_watchdog const&) = delete;
  ~run_watchdog();

  // Called by the training thread.

  /// Starts watching the calling thread; time counts from now.
  void begin(std::int64_t updates);
  /// Stops watching.
  void end() { watches_.store(false); }
  /// Records progress: an update, a save or an evaluation batch completed.
  void record_progress() { last_progress_at_.store(now(), std::memory_order_relaxed); }
  void updated(std::int64_t updates) {
    updates_.store(updates, std::memory_order_relaxed);
    is_first_.store(false, std::memory_order_relaxed);
    record_progress();
  }

 private:
  static std::int64_t now() {
    using namespace std::chrono;
    return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
  }
  void run();
  void check_limits();
  void poll_heartbeats();
  /// Returns the polling interval in milliseconds.
  std::int64_t tick() const;
  std::string sentence(std::int64_t still, char const* limit, long long seconds) const;
  void report(char const* event, std::string const& message, std::string const& stacks) const;
  [[noreturn]] void end_process(int code, std::string const& message) const;
  char const* place() const;
  std::string describe_last_collective() const;

  timeout::settings limits_;
  watchdog_target target_;
  std::atomic<bool> watches_{false};
  std::atomic<bool> is_first_{true};
  std::atomic<std::int64_t> last_progress_at_{0};
  std::atomic<std::int64_t> updates_{0};
  std::atomic<pid_t> training_thread_{0};
  struct sign {
    std::int64_t number = -1;
    std::int64_t at = 0;
  };
  std::vector<sign> heartbeats_;  ///< last heartbeat of each rank, and when it changed
  std::int64_t own_heartbeat_ = 0;
  std::int64_t heartbeats_polled_at_ = 0;
  std::int64_t store_answered_at_ = 0;
  std::int64_t reported_stall_at_ = 0;  ///< last progress before the reported stall
  std::optional<std::int64_t> signalled_at_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;
  std::thread thread_;  ///< declared last, because it uses all other members
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/timeout/run_watchdog.ipp>
#endif
