// A micro-batch for which the program runs the backward passes itself: to free one loss before computing the next, to modify gradients
// during the backward pass, for gradient penalties, or with a library that calls backward().
//
//     auto micro_batch = step.open();
//     a.backward();
//     b.backward();
//     keel::step_outcome outcome = micro_batch.close(a + b);
//
// Between open() and close() the recipe's settings for autocast, recompute and attention are active. Leaving the scope without close(), by
// an exception or an early return, discards the update.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <keel/config/config.hpp>
#include <keel/core/error.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/outcome.hpp>
#include <keel/rule/not_implemented.hpp>
#include <keel/rule/reject_call.hpp>
#include <keel/step/forward_scope.hpp>
#include <optional>

namespace keel::detail::inline KEEL_MODE {

/// The owner of the micro-batch: a step, a trainer or a part.
class manual_backward_owner {
 public:
  virtual void begin_manual_backward() = 0;
  virtual step_outcome end_manual_backward(weighted_loss const& loss, std::int64_t rows, std::int64_t tokens) = 0;
  virtual void abandon_manual_backward() = 0;

 protected:
  ~manual_backward_owner() = default;
};

/// Rejects recipes with a loss scale (U49) or a ladder (U50) at compile time.
template <class Recipe, config const& Configured>
constexpr void reject_manual_backward() {
  if constexpr (Configured.loss_scale.kind != loss_scale::kind::none) {
    reject_call<rule::U49, Recipe>();
  } else if constexpr (Configured.oom.kind == oom::kind::ladder) {
    reject_call<rule::U50, Recipe>();
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

/// The open micro-batch that step::open() returns. Not movable; the step must outlive it.
class manual_backward {
 public:
  /// Opens the micro-batch. Reads `relief` only afterwards, because opening may change it. `runner` and `relief` must outlive this object.
  manual_backward(detail::manual_backward_owner& runner, at::DeviceType device, precision::kind precision,
                  memory_settings const& relief, std::int64_t rows, std::int64_t tokens)
      : runner_(runner), rows_(rows), tokens_(tokens) {
    runner.begin_manual_backward();
    scope_.emplace(device, precision, relief);
  }
  manual_backward(manual_backward const&) = delete;
  manual_backward& operator=(manual_backward const&) = delete;
  ~manual_backward() {
    scope_.reset();
    if (!closed_) runner_.abandon_manual_backward();
  }

  /// Ends the micro-batch after the program's backward passes. `loss`: the scalar loss that was differentiated. It is recorded, and its
  /// value determines whether the update counts as finite. With accumulate<N>, every Nth call applies an update. Throws data_error (E07) if
  /// `loss` is not a floating-point scalar, error (E12) on a second call, and anything that calling the step throws.
  step_outcome close(at::Tensor const& loss) { return close(weighted_loss{loss, 1.0}); }
  /// As above for several named losses.
  step_outcome close(losses const& all) { return close(weighted_loss{all.total(), 1.0, all.parts()}); }

 private:
  step_outcome close(weighted_loss const& loss) {
    if (closed_) throw error("E12", "this micro-batch is already closed. Open another one with step.open().");
    scope_.reset();
    if (!loss.mean.defined() || loss.mean.numel() != 1 || !at::isFloatingType(loss.mean.scalar_type()))
      throw data_error("E07",
                       "close() expects a scalar floating-point loss, or keel::losses. Pass the sum of the losses that "
                       "backward() was called on.");
    closed_ = true;
    return runner_.end_manual_backward(loss, rows_, tokens_);
  }

  detail::manual_backward_owner& runner_;
  std::int64_t rows_;
  std::int64_t tokens_;
  std::optional<detail::forward_scope> scope_;
  bool closed_ = false;
};

}  // namespace keel::inline KEEL_MODE
