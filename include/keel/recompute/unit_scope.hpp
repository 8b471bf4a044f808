// Scopes that determine how the units of this thread are recomputed, and that count them. keel::unit uses the innermost.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/core/error.hpp>
#include <keel/policy/recompute.hpp>
#include <keel/rule/recompute.hpp>
#include <optional>
#include <utility>

namespace keel::inline KEEL_MODE {

/// Called at the beginning and end of each unit, for example to estimate its memory.
class unit_listener {
 public:
  /// `module`: the module that is called; null for a function.
  virtual void begin_unit(void const* module) = 0;
  virtual void end_unit() = 0;
  virtual void output_of_unit(void const* /*module*/, at::Tensor const& /*output*/) {}

 protected:
  ~unit_listener() = default;
};

/// RAII: sets how units of this thread are recomputed, and counts them.
class unit_scope {
 public:
  /// keel::unit_scope const scope{keel::recompute::non_reentrant{}};
  template <policy_for<slot::recompute> Policy>
  explicit unit_scope(Policy const&) : unit_scope(Policy::configured.kind) {}
  explicit unit_scope(recompute_kind kind, unit_listener* listener = nullptr)
      : kind_(kind), listener_(listener), outer_(std::exchange(innermost(), this)) {}
  unit_scope(unit_scope const&) = delete;
  unit_scope& operator=(unit_scope const&) = delete;
  ~unit_scope() { innermost() = outer_; }

  std::int64_t units() const { return units_; }
  /// Throws recipe_error (A21) if no unit was called in this scope.
  void require_any() const {
    if (units_ == 0) throw broken_rule<recipe_error, rule::A21>();
  }

  /// Returns how units of this thread are recomputed now.
  static recompute_kind kind() { return innermost() == nullptr ? recompute_kind::none : innermost()->kind_; }

  /// RAII: a call of a unit.
  class call {
   public:
    explicit call(void const* module) : scope_(innermost()), module_(module) {
      if (scope_ == nullptr) return;
      ++scope_->units_;
      if (scope_->listener_ != nullptr) scope_->listener_->begin_unit(module);
    }
    call(call const&) = delete;
    call& operator=(call const&) = delete;
    void returned(at::Tensor const& output) const {
      if (scope_ != nullptr && scope_->listener_ != nullptr) scope_->listener_->output_of_unit(module_, output);
    }
    ~call() {
      if (scope_ != nullptr && scope_->listener_ != nullptr) scope_->listener_->end_unit();
    }

   private:
    unit_scope* scope_;
    void const* module_;
  };

 private:
  static unit_scope*& innermost() {
    thread_local unit_scope* of_this_thread = nullptr;
    return of_this_thread;
  }

  recompute_kind kind_;
  unit_listener* listener_;
  unit_scope* outer_;
  std::int64_t units_ = 0;
};

}  // namespace keel::inline KEEL_MODE
