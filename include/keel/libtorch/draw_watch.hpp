// Detects whether another thread draws from LibTorch's host generator, which all threads of a process share. Restoring the generator would
// then give that thread the same numbers again, for example a data loader's worker the same augmentations.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <cstring>
#include <exception>
#include <keel/libtorch/compatibility.hpp>
#include <keel/libtorch/mode.hpp>
#include <memory>
#include <unordered_map>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Observes every operator of this thread that takes a generator, during its lifetime. May be nested.
class draw_watch {
 public:
  draw_watch()
      : state_(libtorch::random_state(at::kCPU)),
        outer_(std::exchange(innermost(), this)),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}))) {}
  draw_watch(draw_watch const&) = delete;
  draw_watch& operator=(draw_watch const&) = delete;
  ~draw_watch() {
    at::removeCallback(handle_);
    innermost() = outer_;
  }

  /// Returns true if the generator advanced by more than this thread's operators: another thread, or code that calls the generator
  /// directly, drew numbers. If the state could not be copied for lack of memory, draws until the next copy are attributed to this thread.
  bool others_drew() noexcept {
    compare();
    return others_drew_;
  }

 private:
  /// Marks an operator that draws, from its begin to its end.
  struct drawing : at::ObserverContext {};

  static draw_watch*& innermost() {
    thread_local draw_watch* of_this_thread = nullptr;
    return of_this_thread;
  }

  static std::unique_ptr<at::ObserverContext> begin(at::RecordFunction const& function) {
    if (!takes_generator(function)) return nullptr;
    for (draw_watch* one = innermost(); one != nullptr; one = one->outer_) one->compare();
    return std::make_unique<drawing>();
  }
  static void end(at::RecordFunction const&, at::ObserverContext* drawn) {
    if (drawn == nullptr) return;
    for (draw_watch* one = innermost(); one != nullptr; one = one->outer_) one->state_ = look();
  }

  /// Returns the generator's state; undefined if its copy cannot be allocated.
  static at::Tensor look() noexcept {
    try {
      return libtorch::random_state(at::kCPU);
    } catch (std::exception const&) {
      return {};
    }
  }
  void compare() noexcept {
    at::Tensor now = look();
    if (now.defined() && state_.defined()) others_drew_ |= std::memcmp(now.data_ptr(), state_.data_ptr(), now.nbytes()) != 0;
    state_ = std::move(now);
  }

  /// Determined once per operator and thread; the operator's name is valid for the lifetime of the process.
  static bool takes_generator(at::RecordFunction const& function) {
    thread_local std::unordered_map<char const*, bool> known;
    auto const [found, is_new] = known.try_emplace(function.name(), false);
    auto const name = is_new ? function.operator_name() : c10::nullopt;
    if (name) {
      auto const handle = c10::Dispatcher::singleton().findSchema(*name);
      if (handle) {
        for (auto const& argument : handle->schema().arguments()) found->second |= argument.name() == "generator";
      }
    }
    return found->second;
  }

  at::Tensor state_;  ///< state after the last operator of this thread that drew; undefined if unknown
  bool others_drew_ = false;
  draw_watch* outer_;
  at::CallbackHandle handle_;
};

}  // namespace keel::inline KEEL_MODE
