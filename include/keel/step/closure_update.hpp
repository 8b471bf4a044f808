// The update of an optimizer with a closure, such as LBFGS, which evaluates the loss as often as it likes and changes parameters in
// between.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <keel/step/update_parts.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// One such update. The loss and the norm are those of the first evaluation, at the parameters that the update began with.
class closure_update final : public update_strategy {
 public:
  /// `run_all` runs the micro-batches; both outlive this.
  closure_update(update_parts& parts, c10::function_ref<void()> run_all) : parts_(parts), run_all_(run_all) {}

  /// The optimizer's whole step. Where a loss, a gradient or a parameter is not finite, or anything throws, parameters and the
  /// optimizer's state are as they were.
  update_decision decide() override;
  void apply(update_decision& decision) override;

 private:
  /// The loss, for the optimizer, with unscaled gradients in the parameters. Throws closure_ends where the update is to be skipped.
  at::Tensor evaluate();
  void take_facts(update_sums const& sums);
  /// The gradients that the update began with, as of an optimizer without a closure.
  void judge(gradients<stage::checked>& checked, double loss);
  [[noreturn]] void end(reason why, std::string where, double loss, double norm);

  update_parts& parts_;
  c10::function_ref<void()> run_all_;
  update_decision decision_{{1.0, 0.0, 0, 0, false}};
  std::int64_t evaluations_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/closure_update.ipp>
#endif
