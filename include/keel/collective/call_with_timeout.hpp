// A question that may never be answered: a store may be served by a rank that is stopped, and a TCPStore then waits forever, whatever
// timeout it has.
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

/// What `ask` returns within the time, and as long as `gives_up` is false; what it throws is thrown. Without an answer the thread that asks
/// is left behind, and holds what it works with: `ask` owns all of that.
template <class Answer>
std::optional<Answer> call_with_timeout(std::chrono::milliseconds within, std::function<Answer()> const& ask,
                                        std::function<bool()> const& gives_up = {}) {
  auto const found = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = found->get_future();
  std::thread([found, ask] {
    try {
      found->set_value(ask());
    } catch (...) {
      // Goes to who asks, if it still waits.
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
