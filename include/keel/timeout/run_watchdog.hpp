// timeout::soft, hard, first_update and force_exit: a thread that sees how long a run stays where it is, and that waits for nothing itself
// but, with a heartbeat, a second at most for the store of the ranks.
//   soft          no update, save or batch of an evaluation has ended for so long: says so, once, with what the training thread does
//   longest_save  where it is above soft or hard: in their place while a checkpoint is saved
//   hard          the same for longer: the stacks of all threads go into `no_progress.txt` of the run's directory, a `failed` event (E27) into
//                 events.jsonl, the words to the other ranks and to the launcher; the process ends with exit_code::no_progress
//   first_update  in the place of both until the process has made its first update, which sets up and compiles
//   heartbeat     of several ranks: each leaves a sign of life every so often while its trainer is there. In a run a rank without one for
//                 the limit is named, and the process ends with exit_code::ranks_gone, long before a collective that waits for it would
//   force_exit    a signal asked for a stop so long ago, and the run has not ended: the process ends with 128 and the signal's number
// A process that is ended leaves what it had saved: checkpoints become visible whole, by a rename.
// Left out: an end of the update alone. What hangs is inside of code that cannot be asked to stop.
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

/// What a watch has to know of its run. The functions are called by its thread.
struct watchdog_target {
  std::filesystem::path directory{};  ///< empty: it has none
  int rank = 0;
  int ranks = 1;
  std::function<std::optional<run_phase>()> phase{};  ///< where it is; never waits
  std::function<int()> signal{};                      ///< that asks for a stop; 0: none
  std::function<void(std::string)> notify_ranks{};    ///< why this process ends
  std::function<std::string()> collective{};          ///< describe_current_collective; empty: of one rank
  /// Leaves a sign of life for the other ranks, and returns theirs, as world_of_ranks::exchange_heartbeats.
  std::function<std::optional<std::vector<std::int64_t>>(std::int64_t)> exchange_heartbeats{};
};

constexpr bool has_timeouts(timeout::settings const& limits) {
  return limits.soft > 0 || limits.hard > 0 || limits.first_update > 0 || limits.force_exit > 0 ||
         limits.heartbeat_interval > 0;
}

/// Where `limits` limit nothing it watches nothing.
class run_watchdog {
 public:
  run_watchdog(timeout::settings const& limits, watchdog_target of);
  run_watchdog(run_watchdog const&) = delete;
  run_watchdog& operator=(run_watchdog const&) = delete;
  ~run_watchdog();

  // Of the thread that trains.

  /// Time counts from here on, and for this thread.
  void begin(std::int64_t updates);
  /// Time does not count any more.
  void end() { watches_.store(false); }
  /// The run went on: an update ended, or a part of what is beside them.
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
  /// Milliseconds after which it is looked at again.
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
  std::vector<sign> heartbeats_;  ///< the last of each rank, and when it came
  std::int64_t own_heartbeat_ = 0;
  std::int64_t heartbeats_polled_at_ = 0;
  std::int64_t store_answered_at_ = 0;
  std::int64_t reported_stall_at_ = 0;  ///< when the run had moved last, as it was said
  std::optional<std::int64_t> signalled_at_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool is_over_ = false;
  std::thread thread_;  ///< last: it works with all of them
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/timeout/run_watchdog.ipp>
#endif
