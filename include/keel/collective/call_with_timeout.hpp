// Runs a blocking store request with a deadline: a TCPStore ignores its timeout while the process that serves it is stopped.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <keel/libtorch/mode.hpp>
#include <memory>
#include <optional>
#include <thread>

namespace keel::detail::inline KEEL_MODE {

/// Runs `ask` in a detached thread and returns its result; nullopt after `within`, or as soon as `gives_up()` returns true. Rethrows the
/// exceptions of `ask`. The thread may outlive this call, so `ask` must own everything it uses.
template <class Answer>
std::optional<Answer> call_with_timeout(std::chrono::milliseconds within, std::function<Answer()> const& ask,
                                        std::function<bool()> const& gives_up = {}) {
  auto const found = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = found->get_future();
  std::thread([found, ask] {
    try {
      found->set_value(ask());
    } catch (...) {
      // Rethrown by the caller, if it still waits.
      found->set_exception(std::current_exception());
    }
  }).detach();
  auto const last = std::chrono::steady_clock::now() + within;
  auto const look = gives_up ? std::chrono::milliseconds(50) : within;
  while (answer.wait_for(look) != std::future_status::ready) {
    if (std::chrono::steady_clock::now() >= last || (gives_up && gives_up())) return std::nullopt;
  }
  return answer.get();
}

}  // namespace keel::detail::inline KEEL_MODE
