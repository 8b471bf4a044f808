// Turns SIGTERM, SIGINT and SIGUSR1 into a flag that a run polls at its step boundaries. The handler only writes that flag
// (H06); a second signal of the same run ends the process as it would have without keel.
#pragma once

#include <atomic>
#include <csignal>
#include <mutex>

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
    seen_ = false;
    struct sigaction action = {};
    action.sa_handler = &on_signal;
    ::sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    for (int i = 0; i < count; ++i) {
      ::sigaction(numbers[i], &action, &before_[i]);
      // What the process was told to ignore, as under nohup, it goes on ignoring.
      if (before_[i].sa_handler == SIG_IGN) ::sigaction(numbers[i], &before_[i], nullptr);
    }
  }

  void leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--listeners_ > 0) return;
    for (int i = 0; i < count; ++i) ::sigaction(numbers[i], &before_[i], nullptr);
    // One that came after the last poll was for the program, which has its handlers back.
    int const unseen = pending().exchange(0);
    if (unseen != 0 && !seen_) std::raise(unseen);
  }

  int received() {
    int const number = pending().load(std::memory_order_relaxed);
    if (number != 0) seen_ = true;
    return number;
  }

 private:
  static constexpr int count = 3;
  static constexpr int numbers[count] = {SIGTERM, SIGINT, SIGUSR1};

  static std::atomic<int>& pending() {
    static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only write lock-free");
    static std::atomic<int> number{0};
    return number;
  }

  static void on_signal(int number) {
    if (pending().exchange(number) == 0) return;
    std::signal(number, SIG_DFL);
    std::raise(number);
  }

  std::mutex mutex_;
  std::atomic<bool> seen_{false};
  int listeners_ = 0;
  struct sigaction before_[count] = {};
};

}  // namespace detail

/// Listens for as long as it lives.
class signal_listener {
 public:
  explicit signal_listener(bool active) : active_(active) {
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

}  // namespace keel
