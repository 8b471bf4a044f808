// Selects the kernel of keel::attention on this thread, and counts its calls.
#pragma once

#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/policy/attention.hpp>
#include <keel/rule/attention.hpp>
#include <utility>

namespace keel::inline KEEL_MODE {

/// RAII: selects the kernel of keel::attention on this thread, and counts the calls.
class attention_scope {
 public:
  /// keel::attention_scope const scope{keel::attention::math{}};
  template <policy_for<slot::attention> Policy>
  explicit attention_scope(Policy const&) : attention_scope(Policy::configured.kind) {}
  explicit attention_scope(attention_kind kind) : kind_(kind), outer_(std::exchange(innermost(), this)) {}
  attention_scope(attention_scope const&) = delete;
  attention_scope& operator=(attention_scope const&) = delete;
  ~attention_scope() { innermost() = outer_; }

  std::int64_t calls() const { return calls_; }
  /// Throws recipe_error (A22) if attention was not called in this scope. For recipes that require a fused kernel.
  void require_any() const {
    if (calls_ == 0) throw broken_rule<recipe_error, rule::A22>();
  }

  static attention_kind kind() { return innermost() == nullptr ? attention_kind::automatic : innermost()->kind_; }
  /// Counts a call and returns the kernel to use.
  static attention_kind next() {
    if (innermost() != nullptr) ++innermost()->calls_;
    return kind();
  }

 private:
  static attention_scope*& innermost() {
    thread_local attention_scope* of_this_thread = nullptr;
    return of_this_thread;
  }

  attention_kind kind_;
  attention_scope* outer_;
  std::int64_t calls_ = 0;
};

}  // namespace keel::inline KEEL_MODE
