// A micro-batch whose backward passes the program runs itself: for losses that are freed one after the other, gradients that are changed
// on their way, a penalty on gradients, or a library that calls backward().
//
//     auto micro_batch = step.open();
//     a.backward();
//     b.backward();
//     keel::step_outcome outcome = micro_batch.close(a + b);
//
// From open to close autocast, recompute and attention are the recipe's. An exception in between, or a return, drops the update.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <cstdint>
#include <keel/attention/attention_scope.hpp>
#include <keel/core/error.hpp>
#include <keel/core/loss.hpp>
#include <keel/core/outcome.hpp>
#include <keel/recompute/unit_scope.hpp>
#include <optional>

namespace keel::inline KEEL_MODE {

/// What step::open returns; it stays where it is, and ends before its step.
template <class Step>
class own_backward {
 public:
  explicit own_backward(Step& step, std::int64_t rows, std::int64_t tokens) : step_(step), rows_(rows), tokens_(tokens) {
    step.begin_own();
    scopes_.emplace(step);
  }
  own_backward(own_backward const&) = delete;
  own_backward& operator=(own_backward const&) = delete;
  ~own_backward() {
    scopes_.reset();
    if (!closed_) step_.abandon_own();
  }

  /// The backward passes are done. `loss`: what they went back from, a tensor or keel::losses; it says whether the update is finite, and
  /// is recorded. With accumulate<N> every Nth call updates. Throws as a step's call does, and error (E12) the second time.
  step_outcome close(at::Tensor const& loss) { return close(weighted_loss{loss, 1.0}); }
  step_outcome close(losses const& all) { return close(weighted_loss{all.total(), 1.0, all.parts()}); }

 private:
  struct scopes {
    explicit scopes(Step& step)
        : autocast(step.parameters().device, Step::configured.precision.kind),
          units(step.relief().recompute),
          attention(step.relief().attention) {}
    typename Step::autocast autocast;
    unit_scope units;
    attention_scope attention;
  };

  step_outcome close(weighted_loss const& loss) {
    if (closed_) throw error("E12", "this micro-batch was closed before. Open another one with step.open().");
    scopes_.reset();
    if (!loss.mean.defined() || loss.mean.numel() != 1 || !at::isFloatingType(loss.mean.scalar_type()))
      throw data_error("E07",
                       "close() takes the loss that the backward passes went back from, as one floating-point number, or "
                       "keel::losses. Pass the sum of what was differentiated.");
    closed_ = true;
    return step_.end_own(loss, rows_, tokens_);
  }

  Step& step_;
  std::int64_t rows_;
  std::int64_t tokens_;
  std::optional<scopes> scopes_;
  bool closed_ = false;
};

}  // namespace keel::inline KEEL_MODE
