// Turns SIGTERM, SIGINT, SIGHUP and SIGUSR1 into a flag that a run polls at its update boundaries, and SIGUSR2 into another
// one, which asks for a checkpoint and lets the run go on. The handlers only write those flags (H06). A loop that the program
// owns listens for as long as it wants to:
//     keel::signal_listener const signals;
//     for (auto& batch : loader) {
//       run.step(batch, loss_of);
//       if (run.should_stop(signals)) break;
//     }
//     run.finish(signals.received());
// A launcher often forwards what the scheduler has sent to all processes, so the same signal within `repeats_within` seconds
// counts once; later it ends the process as it would have without keel. A program that handles SIGUSR2 itself keeps it.
#pragma once

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace keel {

namespace detail {

/// A signal is for the process, so every trainer that listens sees it; the handlers go when the last of them ends.
class process_signals {
 public:
  static process_signals& instance() {
    static process_signals signals;
    return signals;
  }

  void listen() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (listeners_++ > 0) return;
    pending().store(0);
    for (auto& time : first_times()) time.store(0);
    seen_ = false;
    struct sigaction action = {};
    action.sa_handler = &on_stop;
    ::sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    for (int i = 0; i < count; ++i) {
      ::sigaction(numbers[i], &action, &before_[i]);
      // What the process was started to ignore, as under nohup, it goes on ignoring.
      if (before_[i].sa_handler == SIG_IGN) ::sigaction(numbers[i], &before_[i], nullptr);
    }
  }
  void leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--listeners_ > 0) return;
    for (int i = 0; i < count; ++i) put_back(numbers[i], &on_stop, before_[i]);
    // One that came after the last poll was for the program, which has its handlers back.
    int const unseen = pending().exchange(0);
    if (unseen != 0 && !seen_) std::raise(unseen);
  }
  int received() {
    int const number = pending().load(std::memory_order_relaxed);
    if (number != 0) seen_ = true;
    return number;
  }

  void listen_for_saves() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (save_listeners_++ > 0) return;
    struct sigaction action = {};
    action.sa_handler = &on_save;
    ::sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR2, &action, &save_before_);
    if (save_before_.sa_handler != SIG_DFL) ::sigaction(SIGUSR2, &save_before_, nullptr);
  }
  void leave_saves() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--save_listeners_ == 0) put_back(SIGUSR2, &on_save, save_before_);
  }
  /// How many checkpoints SIGUSR2 asked for so far.
  int saves_asked() const { return saves().load(std::memory_order_relaxed); }

 private:
  static constexpr int count = 4;
  static constexpr int numbers[count] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
  static constexpr std::int64_t repeats_within = 5;  // seconds

  static std::atomic<int>& pending() {
    static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only write lock-free");
    static std::atomic<int> number{0};
    return number;
  }
  /// Of each of `numbers`, when it came first; 0: not yet.
  static std::atomic<std::int64_t> (&first_times())[count] {
    static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler may only write lock-free");
    static std::atomic<std::int64_t> times[count] = {};
    return times;
  }
  static std::atomic<int>& saves() {
    static std::atomic<int> asked{0};
    return asked;
  }

  /// A handler that the program set meanwhile stays.
  static void put_back(int number, void (*handler)(int), struct sigaction const& before) {
    struct sigaction now = {};
    ::sigaction(number, nullptr, &now);
    if (now.sa_handler == handler) ::sigaction(number, &before, nullptr);
  }

  static void on_save(int /*number*/) { saves().fetch_add(1); }

  static void on_stop(int number) {
    int const error = errno;
    int none = 0;
    pending().compare_exchange_strong(none, number);
    struct timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    std::int64_t const now = static_cast<std::int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000 + 1;
    for (int i = 0; i < count; ++i) {
      std::int64_t first = 0;
      if (numbers[i] != number || first_times()[i].compare_exchange_strong(first, now)) continue;
      if (now - first < repeats_within * 1000) {
        say("keel: this run is stopping already; the same signal after 5 seconds ends it at once, without a checkpoint\n");
      } else {
        say("keel: a second signal ends this run at once; the last checkpoint is what a resume goes on from\n");
        std::signal(number, SIG_DFL);
        std::raise(number);
      }
    }
    errno = error;
  }
  /// A handler may call write and little else; that the text cannot be written is nothing it could act on.
  static void say(char const* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

  std::mutex mutex_;
  std::atomic<bool> seen_{false};
  int listeners_ = 0;
  int save_listeners_ = 0;
  struct sigaction before_[count] = {};
  struct sigaction save_before_ = {};
};

}  // namespace detail

/// Listens for signals that ask for a stop, for as long as it lives.
class signal_listener {
 public:
  explicit signal_listener(bool active = true) : active_(active) {
    if (active_) detail::process_signals::instance().listen();
  }
  signal_listener(signal_listener const&) = delete;
  signal_listener& operator=(signal_listener const&) = delete;
  ~signal_listener() {
    if (active_) detail::process_signals::instance().leave();
  }
  /// The signal that asks for a stop, or 0.
  int received() const { return active_ ? detail::process_signals::instance().received() : 0; }

 private:
  bool active_;
};

/// Listens for SIGUSR2, which asks for a checkpoint, for as long as it lives.
class save_listener {
 public:
  explicit save_listener(bool active = true) : active_(active) {
    if (!active_) return;
    seen_ = detail::process_signals::instance().saves_asked();
    detail::process_signals::instance().listen_for_saves();
  }
  save_listener(save_listener const&) = delete;
  save_listener& operator=(save_listener const&) = delete;
  ~save_listener() {
    if (active_) detail::process_signals::instance().leave_saves();
  }
  /// A checkpoint was asked for since the last call.
  bool take_request() {
    if (!active_) return false;
    int const asked = detail::process_signals::instance().saves_asked();
    return std::exchange(seen_, asked) != asked;
  }

 private:
  bool active_;
  int seen_ = 0;
};

}  // namespace keel
