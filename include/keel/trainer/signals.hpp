// Turns SIGTERM, SIGINT, SIGHUP and SIGUSR1 into a flag that a run polls at its update boundaries. SIGUSR2 sets another flag,
// which requests a checkpoint without ending the run. The handlers only write these flags (H06). In a program's own loop, a
// listener enables them during its lifetime:
//     keel::signal_listener const signals;
//     for (auto& batch : loader) {
//       run.step(batch, loss_of);
//       if (run.should_stop(signals)) break;
//     }
//     run.finish(signals.received());
// A repetition within `repeats_within` seconds is ignored, because launchers often forward a signal that the scheduler already sent to
// every process. A later repetition has its usual effect, as if keel handled no signals. If the program has its own handler for SIGUSR2,
// that handler is kept.
#pragma once

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <keel/libtorch/mode.hpp>
#include <mutex>
#include <utility>

namespace keel::detail::inline KEEL_MODE {

/// The signal handlers of the process. Every listening trainer receives a signal; the handlers are removed with the last one.
class process_signals {
 public:
  static process_signals& instance() {
    static process_signals signals;
    return signals;
  }

  void listen();
  void stop_listening();
  int received();
  /// If no run has received a pending signal, keeps it for the next listener instead of raising it again when the handlers are removed.
  void defer() { is_deferred_ = true; }
  /// Returns the pending signal without consuming it; 0: none.
  static int peek_pending() { return pending().load(std::memory_order_relaxed); }

  void listen_for_saves();
  void stop_listening_for_saves() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--save_listeners_ == 0) put_back(SIGUSR2, &on_save, save_before_);
  }
  /// Number of SIGUSR2 signals received so far.
  int save_signals_received() const { return saves().load(std::memory_order_relaxed); }

 private:
  static constexpr int count = 4;
  static constexpr int numbers[count] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
  static constexpr std::int64_t repeats_within = 5;  // seconds

  // One instance per process, even if only some of its files include the definitions.
  static std::atomic<int>& pending() {
    static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only write lock-free");
    static std::atomic<int> number{0};
    return number;
  }
  /// Time of the first signal of each of `numbers`, in milliseconds; 0: none yet.
  static std::atomic<std::int64_t> (&first_times())[count] {
    static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler may only write lock-free");
    static std::atomic<std::int64_t> times[count] = {};
    return times;
  }
  static std::atomic<int>& saves() {
    static std::atomic<int> asked{0};
    return asked;
  }

  /// Restores the previous handler, unless the program set another one meanwhile.
  static void put_back(int number, void (*handler)(int), struct sigaction const& before);

  static void on_save(int /*number*/) { saves().fetch_add(1); }

  static void on_stop(int number);
  /// Async-signal-safe: only calls write, and ignores its failure.
  static void say(char const* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

  std::mutex mutex_;
  std::atomic<bool> seen_{false};
  std::atomic<bool> is_deferred_{false};
  int deferred_ = 0;
  int listeners_ = 0;
  int save_listeners_ = 0;
  struct sigaction before_[count] = {};
  struct sigaction save_before_ = {};
};

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// RAII: listens for signals that request a stop.
class signal_listener {
 public:
  /// `active`: if false, does not listen.
  explicit signal_listener(bool active = true) : active_(active) {
    if (active_) detail::process_signals::instance().listen();
  }
  signal_listener(signal_listener const&) = delete;
  signal_listener& operator=(signal_listener const&) = delete;
  ~signal_listener() {
    if (active_) detail::process_signals::instance().stop_listening();
  }
  /// Call when the run has finished: a signal that arrived too late for it stops the next run of this process.
  void defer() const {
    if (active_) detail::process_signals::instance().defer();
  }
  /// The signal that requests a stop; 0: none.
  int received() const { return active_ ? detail::process_signals::instance().received() : 0; }

 private:
  bool active_;
};

/// RAII: listens for SIGUSR2, which requests a checkpoint.
class save_listener {
 public:
  /// `active`: if false, does not listen.
  explicit save_listener(bool active = true);
  save_listener(save_listener const&) = delete;
  save_listener& operator=(save_listener const&) = delete;
  ~save_listener() {
    if (active_) detail::process_signals::instance().stop_listening_for_saves();
  }
  /// True if a checkpoint was requested since the last call.
  bool take_request();

 private:
  bool active_;
  int seen_ = 0;
};

}  // namespace keel::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/trainer/signals.ipp>
#endif
