// The update of an optimizer with a closure, such as LBFGS, which evaluates the loss as often as it likes and changes parameters in
// between.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/FunctionRef.h>

#include <cmath>
#include <cstdint>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/core/outcome.hpp>
#include <keel/step/closure_backup.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/observer.hpp>
#include <keel/step/update_decision.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace keel::detail::inline KEEL_MODE {

/// One such update of a step, whose parts it uses. The loss and the norm are those of the first evaluation, at the parameters that the
/// update began with.
template <class Step>
class closure_update {
 public:
  /// `run_all` runs the micro-batches; both outlive this.
  closure_update(Step& step, c10::function_ref<void()> run_all) : step_(step), run_all_(run_all) {}

  /// The optimizer's whole step. Where a loss, a gradient or a parameter is not finite, or anything throws, parameters and the
  /// optimizer's state are as they were.
  update_decision run() {
    found_.facts.loss_scale = step_.scaler_.factor();
    step_.schedule_.require_sound(step_.begun() + 1);
    closure_backup backup(step_.optimizer_, step_.parameters_);
    step_.schedule_.apply(step_.optimizer_);
    found_.facts.learning_rate = step_.schedule_.rate();
    step_.pass_.layers().before_update();
    try {
      step_.optimizer_.step([this] { return evaluate(); });
      if (auto const name = first_nonfinite_parameter(step_.parameters_)) {
        found_.skip_reason = reason::nonfinite_gradient;
        found_.where = *name;
      }
    } catch (closure_ends const&) {
      // found_ says why.
    } catch (...) {
      backup.put_back();
      throw;
    }
    if (found_.skip_reason) {
      backup.put_back();
      if (evaluations_ > 1)
        step_.trace_.cannot_add("the optimizer came to it in its search, away from the parameters of the update");
    }
    return std::move(found_);
  }

 private:
  /// The loss, for the optimizer, with unscaled gradients in the parameters. Throws closure_ends where the update is to be skipped.
  at::Tensor evaluate() {
    at::AutoGradMode const enabled(true);
    if (evaluations_++ > 0) step_.pass_.restart(step_.scaler_.factor());
    run_all_();
    step_.pass_.memory().enter(memory::phase::update);
    step_.pass_.phases().enter(run_phase::update);
    bool const is_first = evaluations_ == 1;
    update_sums const& sums = step_.pass_.sums();
    if (step_.pass_.has_zero_weight()) {
      if (is_first) take_facts(sums);
      constexpr double nan = std::numeric_limits<double>::quiet_NaN();
      end(reason::zero_weight, "", nan, nan);
    }
    double const loss = step_.losses_stay_on_device_ ? Step::read(sums.loss.mean_on_device()) : sums.loss.mean();
    if (is_first) take_facts(sums);
    found_.facts.origin = origin_of(sums);
    if (!std::isfinite(loss)) end(reason::nonfinite_loss, sums.parts.first_nonfinite(Step::read), loss, loss);
    auto result = step_.pass_.complete().unscale().check();
    if (auto const* nonfinite = std::get_if<nonfinite_gradient>(&result))
      end(reason::nonfinite_gradient, step_.parameters_.names[nonfinite->parameter], loss, nonfinite->norm);
    auto& checked = std::get<gradients<stage::checked>>(result);
    if (is_first) judge(checked, loss);
    checked.write();
    return at::scalar_tensor(loss, at::kDouble);
  }

  void take_facts(update_sums const& sums) {
    require_declared_update(step_.present_value().accumulate, step_.micro_batches_, sums.rows * step_.context_.run().world_size,
                            step_.updates_ == 0 && step_.skipped_ == 0);
    found_.facts.tokens = sums.tokens;
    found_.facts.rows = sums.rows;
    found_.facts.parts = sums.parts;
  }

  /// The gradients that the update began with, as of an optimizer without a closure.
  void judge(gradients<stage::checked>& checked, double loss) {
    found_.loss = loss;
    found_.norm = checked.norm();
    if (!std::isfinite(found_.norm)) end(reason::nonfinite_gradient, "", loss, found_.norm);
    if (step_.is_spoiled(found_)) end(reason::nonfinite_buffer, found_.where, loss, found_.norm);
    if (auto const why = step_.guards_.spike().judge(loss, found_.norm)) end(*why, "", loss, found_.norm);
    if (reads_gradients(step_.observe_)) step_.show_gradients(found_.norm, checked.unscaled());
    auto& layers = step_.pass_.layers();
    if (layers.is_on()) layers.gradients(checked.norms(), checked.factor());
  }

  [[noreturn]] void end(reason why, std::string where, double loss, double norm) {
    found_.skip_reason = why;
    found_.where = std::move(where);
    if (evaluations_ == 1) found_.loss = loss, found_.norm = norm;
    throw closure_ends();
  }

  Step& step_;
  c10::function_ref<void()> run_all_;
  update_decision found_{{1.0, 0.0, 0, 0, false}};
  std::int64_t evaluations_ = 0;
};

}  // namespace keel::detail::inline KEEL_MODE
