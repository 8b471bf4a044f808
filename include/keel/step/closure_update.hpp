// The update of a closure optimizer such as LBFGS, which evaluates the loss several times and changes parameters in between.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <keel/step/update_parts.hpp>
#include <string>

namespace keel::detail::inline KEEL_MODE {

/// One update. The loss and norm that it reports are those of the first evaluation, at the initial parameters.
class closure_update final : public update_strategy {
 public:
  /// `run_all` runs the micro-batches. Both arguments must outlive this object.
  closure_update(update_parts& parts, c10::function_ref<void()> run_all) : parts_(parts), run_all_(run_all) {}

  /// Runs the optimizer's step. Restores parameters and optimizer state if the update is skipped for any reason, such as a spike or zero
  /// weight, or if an exception is thrown.
  update_decision decide() override;
  void apply(update_decision& decision) override;

 private:
  /// The closure: returns the loss and leaves unscaled gradients in the parameters. Throws closure_abort if the update is to be skipped.
  at::Tensor evaluate();
  void record_facts(update_sums const& sums);
  /// Checks the gradients of the first evaluation, as for other optimizers.
  void judge(gradients<stage::checked>& checked, double loss);
  /// Records the reason to skip the update and throws closure_abort.
  [[noreturn]] void throw_skip(reason why, std::string where, double loss, double norm);

  update_parts& parts_;
  c10::function_ref<void()> run_all_;
  update_decision decision_{{1.0, 0.0, 0, 0, false}};
  std::int64_t evaluations_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/closure_update.ipp>
#endif
