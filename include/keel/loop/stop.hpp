// Turns SIGTERM, SIGINT and SIGUSR1 into a flag that a run polls at its step boundaries, and SIGUSR2 into another one, which
// asks for a checkpoint and lets the run go on. The handlers only write those flags (H06); a second signal to stop ends the
// process as it would have without keel. A program that handles SIGUSR2 itself keeps it.
#pragma once

#include <atomic>
#include <csignal>
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
    saves().store(0);
    action.sa_handler = &on_save;
    ::sigaction(SIGUSR2, &action, &save_before_);
    if (save_before_.sa_handler != SIG_DFL) ::sigaction(SIGUSR2, &save_before_, nullptr);
  }

  void leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--listeners_ > 0) return;
    for (int i = 0; i < count; ++i) ::sigaction(numbers[i], &before_[i], nullptr);
    ::sigaction(SIGUSR2, &save_before_, nullptr);
    // One that came after the last poll was for the program, which has its handlers back.
    int const unseen = pending().exchange(0);
    if (unseen != 0 && !seen_) std::raise(unseen);
  }

  /// How many checkpoints SIGUSR2 asked for so far.
  int saves_asked() const { return saves().load(std::memory_order_relaxed); }

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

  static std::atomic<int>& saves() {
    static std::atomic<int> count{0};
    return count;
  }
  static void on_save(int /*number*/) { saves().fetch_add(1); }

  static void on_signal(int number) {
    if (pending().exchange(number) == 0) return;
    std::signal(number, SIG_DFL);
    std::raise(number);
  }

  std::mutex mutex_;
  std::atomic<bool> seen_{false};
  int listeners_ = 0;
  struct sigaction before_[count] = {};
  struct sigaction save_before_ = {};
};

}  // namespace detail

/// A pointer to something that lives in one scope, and to nothing after it.
template <class Value>
class scoped_pointer {
 public:
  scoped_pointer(Value const*& pointer, Value const& value) : pointer_(pointer) { pointer_ = &value; }
  scoped_pointer(scoped_pointer const&) = delete;
  scoped_pointer& operator=(scoped_pointer const&) = delete;
  ~scoped_pointer() { pointer_ = nullptr; }

 private:
  Value const*& pointer_;
};

/// Listens for as long as it lives.
class signal_listener {
 public:
  explicit signal_listener(bool active) : active_(active) {
    if (!active_) return;
    detail::process_signals::instance().listen();
    saves_seen_ = detail::process_signals::instance().saves_asked();
  }
  signal_listener(signal_listener const&) = delete;
  signal_listener& operator=(signal_listener const&) = delete;
  ~signal_listener() {
    if (active_) detail::process_signals::instance().leave();
  }
  /// The signal that asks for a stop, or 0.
  int received() const { return active_ ? detail::process_signals::instance().received() : 0; }
  /// A signal asked for a checkpoint since the last call.
  bool take_save_request() const {
    if (!active_) return false;
    int const asked = detail::process_signals::instance().saves_asked();
    return std::exchange(saves_seen_, asked) != asked;
  }

 private:
  bool active_;
  mutable int saves_seen_ = 0;
};

}  // namespace keel
