// Definitions for signals.hpp.
#pragma once

#include <keel/trainer/signals.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void process_signals::listen() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (listeners_++ > 0) return;
  pending().store(std::exchange(deferred_, 0));
  is_deferred_ = false;
  for (auto& time : first_times()) time.store(0);
  seen_ = false;
  struct sigaction action = {};
  action.sa_handler = &on_stop;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < count; ++i) {
    ::sigaction(numbers[i], &action, &before_[i]);
    // Signals that the process was started to ignore, as under nohup, stay ignored.
    if (before_[i].sa_handler == SIG_IGN) ::sigaction(numbers[i], &before_[i], nullptr);
  }
}

KEEL_BODY void process_signals::stop_listening() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--listeners_ > 0) return;
  for (int i = 0; i < count; ++i) put_back(numbers[i], &on_stop, before_[i]);
  // Raise a signal that arrived after the last poll again: the program's handlers are restored and receive it.
  int const unseen = pending().exchange(0);
  if (unseen == 0 || seen_) return;
  if (is_deferred_) {
    deferred_ = unseen;
  } else {
    std::raise(unseen);
  }
}

KEEL_BODY int process_signals::received() {
  int const number = pending().load(std::memory_order_relaxed);
  if (number != 0) seen_ = true;
  return number;
}

KEEL_BODY void process_signals::listen_for_saves() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (save_listeners_++ > 0) return;
  struct sigaction action = {};
  action.sa_handler = &on_save;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, &save_before_);
  if (save_before_.sa_handler != SIG_DFL) ::sigaction(SIGUSR2, &save_before_, nullptr);
}

KEEL_BODY void process_signals::put_back(int number, void (*handler)(int), struct sigaction const& before) {
  struct sigaction now = {};
  ::sigaction(number, nullptr, &now);
  if (now.sa_handler == handler) ::sigaction(number, &before, nullptr);
}

KEEL_BODY void process_signals::on_stop(int number) {
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
      say("keel: this run is already stopping; sending the same signal after 5 seconds ends it immediately, without a "
          "checkpoint\n");
    } else {
      say("keel: second signal: exiting immediately; a resume continues from the last checkpoint\n");
      std::signal(number, SIG_DFL);
      std::raise(number);
    }
  }
  errno = error;
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY save_listener::save_listener(bool active) : active_(active) {
  if (!active_) return;
  seen_ = detail::process_signals::instance().save_signals_received();
  detail::process_signals::instance().listen_for_saves();
}

KEEL_BODY bool save_listener::take_request() {
  if (!active_) return false;
  int const asked = detail::process_signals::instance().save_signals_received();
  return std::exchange(seen_, asked) != asked;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
