// Observes every operation that LibTorch runs for a thread, including those of its backward passes on other threads.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <keel/core/error.hpp>
#include <memory>
#include <utility>

namespace keel::inline KEEL_MODE {

class operation_observer {
 public:
  /// Called when an operation begins. Returns the context that ended() receives, or null to skip that call. Both functions are called on
  /// the thread that runs the operation, possibly several at once, and must not throw. The name of the operation is that of the operator,
  /// such as "aten::mm".
  virtual std::unique_ptr<at::ObserverContext> began(at::RecordFunction const& operation) = 0;
  virtual void ended(at::RecordFunction const& operation, at::ObserverContext& context) = 0;

  /// What to observe in addition to the name of each operation.
  struct request {
    bool inputs = false;
    bool outputs = false;
    bool backward_functions = false;  ///< also observes the functions of a backward pass, with names such as "LogBackward0"
  };

  class scope;

 protected:
  ~operation_observer() = default;
};

}  // namespace keel::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

// LibTorch's callbacks are plain functions without a user argument. A backward pass propagates them to its threads, but no thread-local
// variables. Therefore each slot has a separate function.
inline constexpr std::size_t max_observers = 8;

inline std::array<std::atomic<operation_observer*>, max_observers>& observers() {
  static std::array<std::atomic<operation_observer*>, max_observers> all{};
  return all;
}

struct observed_operation : at::ObserverContext {
  explicit observed_operation(std::unique_ptr<at::ObserverContext> what) : inner(std::move(what)) {}
  std::unique_ptr<at::ObserverContext> inner;
};

template <std::size_t Place>
std::unique_ptr<at::ObserverContext> operation_began(at::RecordFunction const& operation) {
  operation_observer* const observer = observers()[Place].load(std::memory_order_acquire);
  if (observer == nullptr) return nullptr;
  auto context = observer->began(operation);
  if (!context) return nullptr;
  return std::make_unique<observed_operation>(std::move(context));
}
template <std::size_t Place>
void operation_ended(at::RecordFunction const& operation, at::ObserverContext* context) {
  auto* const observed = static_cast<observed_operation*>(context);
  operation_observer* const observer = observers()[Place].load(std::memory_order_acquire);
  if (observer != nullptr && observed != nullptr && observed->inner) observer->ended(operation, *observed->inner);
}

template <std::size_t... Place>
at::RecordFunctionCallback callback_of(std::size_t place, std::index_sequence<Place...>) {
  constexpr std::array<at::RecordFunctionCallback::StartCallback, max_observers> starts{&operation_began<Place>...};
  constexpr std::array<at::RecordFunctionCallback::EndCallback, max_observers> ends{&operation_ended<Place>...};
  return at::RecordFunctionCallback(starts[place], ends[place]);
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::detail::inline KEEL_MODE {

using operation_inputs = c10::ArrayRef<c10::IValue const>;
struct inputs_of_operations {
  friend operation_inputs at::RecordFunction::* member_of(inputs_of_operations);
};
template <class Name, auto Member>
struct revealed {
  friend decltype(Member) member_of(Name) { return Member; }
};
template struct revealed<inputs_of_operations, &at::RecordFunction::inputs_>;

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// Returns the inputs of an operation that begins, if the observer's scope requested them. In a program without NDEBUG, operation.inputs()
/// asserts on a flag that a LibTorch built with NDEBUG never sets. The member has the same offset in both, so this function reads it.
inline detail::operation_inputs inputs_of(at::RecordFunction const& operation) {
  return operation.*member_of(detail::inputs_of_operations());
}

/// Observes the operations of the current thread during its lifetime. Must be destroyed on the same thread. Throws error (E12) if the
/// process already has eight observers.
class operation_observer::scope {
 public:
  explicit scope(operation_observer& observer, request const& wanted = {}) {
    while (place_ < detail::max_observers) {
      operation_observer* free = nullptr;
      if (detail::observers()[place_].compare_exchange_strong(free, &observer)) break;
      ++place_;
    }
    if (place_ == detail::max_observers)
      throw error("E12",
                  "this process already runs eight profiles or operation counts, which is the limit. End one of them first.");
    auto callback = detail::callback_of(place_, std::make_index_sequence<detail::max_observers>());
    callback.needsInputs(wanted.inputs).needsOutputs(wanted.outputs).scopes({at::RecordScope::FUNCTION});
    if (wanted.backward_functions) callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
    handle_ = at::addThreadLocalCallback(callback);
  }
  scope(scope const&) = delete;
  scope& operator=(scope const&) = delete;
  ~scope() {
    at::removeCallback(handle_);
    detail::observers()[place_].store(nullptr, std::memory_order_release);
  }

 private:
  std::size_t place_ = 0;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace keel::inline KEEL_MODE
