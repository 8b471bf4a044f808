// keel::unit(forward, input..): marks a block of the model once, for every policy that works by blocks. Without such a policy
// it is the call itself.
//     for (auto& block : blocks) x = keel::unit([&](at::Tensor const& x) { return block->forward(x); }, x);
// Under keel::recompute::reentrant or non_reentrant a trainer or step computes each unit again in the backward pass; a
// unit_scope does so in a loop of one's own. What `forward` refers to must then live until the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <keel/error.hpp>
#include <keel/memory/recompute.hpp>
#include <keel/policy/recompute.hpp>
#include <keel/rule/recompute.hpp>
#include <type_traits>
#include <utility>

namespace keel {

/// Units of this thread are recomputed this way for as long as it lives; it counts them.
class unit_scope {
 public:
  explicit unit_scope(recompute_kind kind) : kind_(kind), outer_(std::exchange(innermost(), this)) {}
  unit_scope(unit_scope const&) = delete;
  unit_scope& operator=(unit_scope const&) = delete;
  ~unit_scope() { innermost() = outer_; }

  std::int64_t units() const { return units_; }
  /// Throws recipe_error (A21) where units should have been recomputed and none was called.
  void require_any() const {
    if (kind_ != recompute_kind::none && units_ == 0) throw broken_rule<recipe_error, rule::A21>();
  }

  /// How the unit that is called now is to be recomputed.
  static recompute_kind next() {
    unit_scope* const scope = innermost();
    if (scope == nullptr) return recompute_kind::none;
    ++scope->units_;
    return scope->kind_;
  }

 private:
  static unit_scope*& innermost() {
    thread_local unit_scope* of_this_thread = nullptr;
    return of_this_thread;
  }

  recompute_kind kind_;
  unit_scope* outer_;
  std::int64_t units_ = 0;
};

/// Calls `forward(inputs..)`, which returns one tensor, as the policies of the run say. Throws as recompute and
/// recompute_reentrant do.
template <class Forward, std::same_as<at::Tensor>... Inputs>
requires std::same_as<std::invoke_result_t<Forward&, Inputs const&...>, at::Tensor> at::Tensor unit(Forward&& forward,
                                                                                                    Inputs const&... inputs) {
  switch (unit_scope::next()) {
    case recompute_kind::non_reentrant:
      return recompute(std::forward<Forward>(forward), inputs...);
    case recompute_kind::reentrant:
      return recompute_reentrant(std::forward<Forward>(forward), inputs...);
    case recompute_kind::none:
      break;
  }
  return forward(inputs...);
}

}  // namespace keel
