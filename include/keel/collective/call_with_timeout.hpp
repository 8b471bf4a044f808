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

/// Runs `request` in a detached thread and returns its result; nullopt after `timeout`, or as soon as `is_cancelled()` returns true.
/// Rethrows the exceptions of `request`. The thread may outlive this call, so `request` must own everything it uses.
template <class Answer>
std::optional<Answer> call_with_timeout(std::chrono::milliseconds timeout, std::function<Answer()> const& request,
                                        std::function<bool()> const& is_cancelled = {}) {
  auto const found = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = found->get_future();
  std::thread([found, request] {
    try {
      found->set_value(request());
    } catch (...) {
      // Rethrown by the caller, if it still waits.
      found->set_exception(std::current_exception());
    }
  }).detach();
  auto const deadline = std::chrono::steady_clock::now() + timeout;
  auto const look = is_cancelled ? std::chrono::milliseconds(50) : timeout;
  while (answer.wait_for(look) != std::future_status::ready) {
    if (std::chrono::steady_clock::now() >= deadline || (is_cancelled && is_cancelled())) return std::nullopt;
  }
  return answer.get();
}

}  // namespace keel::detail::inline KEEL_MODE
