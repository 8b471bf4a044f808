// Definitions for closure_update.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <keel/step/closure_backup.hpp>
#include <keel/step/closure_update.hpp>
#include <limits>
#include <utility>
#include <variant>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY update_decision closure_update::decide() {
  decision_.facts.loss_scale = parts_.scaler.factor();
  parts_.schedule.require_sound(parts_.begun() + 1);
  closure_backup backup(parts_.optimizer, parts_.parameters);
  parts_.schedule.apply(parts_.optimizer);
  decision_.facts.learning_rate = parts_.schedule.rate();
  parts_.pass.layers().before_update();
  try {
    parts_.optimizer.step([this] { return evaluate(); });
    if (auto const name = first_nonfinite_parameter(parts_.parameters)) {
      decision_.skip_reason = reason::nonfinite_gradient;
      decision_.where = *name;
    }
  } catch (closure_abort const&) {
    // decision_.skip_reason has the reason.
  } catch (...) {
    // Rethrown, after restoring everything.
    backup.restore();
    throw;
  }
  if (decision_.skip_reason) {
    backup.restore();
    if (evaluations_ > 1)
      parts_.trace.set_missing_reason(
          "it occurred at a trial point of the optimizer's search, not at the parameters that the update began with");
  }
  return std::move(decision_);
}

KEEL_BODY void closure_update::apply(update_decision& /*decision*/) {
  parts_.pass.begin_update();
  parts_.pass.layers().after_update(parts_.updates + 1);
}

KEEL_BODY at::Tensor closure_update::evaluate() {
  at::AutoGradMode const enabled(true);
  auto const read = [this](at::Tensor const& one) { return parts_.read(one); };
  if (evaluations_++ > 0) parts_.pass.restart(parts_.scaler.factor());
  run_all_();
  parts_.pass.memory().enter(memory::phase::update);
  parts_.pass.phases().enter(run_phase::update);
  bool const is_first = evaluations_ == 1;
  update_sums const& sums = parts_.pass.sums();
  if (parts_.pass.has_zero_weight()) {
    if (is_first) record_facts(sums);
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    throw_skip(reason::zero_weight, "", nan, nan);
  }
  double const loss = parts_.losses_stay_on_device ? read(sums.loss.mean_on_device()) : sums.loss.mean();
  if (is_first) record_facts(sums);
  decision_.facts.origin = origin_of(sums);
  if (!std::isfinite(loss)) throw_skip(reason::nonfinite_loss, sums.named_losses.first_nonfinite(read), loss, loss);
  auto result = parts_.pass.complete().unscale().check();
  if (auto const* nonfinite = std::get_if<nonfinite_gradient>(&result))
    throw_skip(reason::nonfinite_gradient, parts_.parameters.names[nonfinite->parameter], loss, nonfinite->norm);
  auto& checked = std::get<gradients<stage::checked>>(result);
  if (is_first) judge(checked, loss);
  checked.apply_factor();
  return at::scalar_tensor(loss, at::kDouble);
}

KEEL_BODY void closure_update::record_facts(update_sums const& sums) {
  parts_.require_declared_rows();
  decision_.facts.tokens = sums.tokens;
  decision_.facts.rows = sums.rows;
  decision_.facts.named_losses = sums.named_losses;
}

KEEL_BODY void closure_update::judge(gradients<stage::checked>& checked, double loss) {
  decision_.loss = loss;
  decision_.norm = checked.norm();
  if (!std::isfinite(decision_.norm)) throw_skip(reason::nonfinite_gradient, "", loss, decision_.norm);
  if (parts_.find_nonfinite_buffer(decision_)) throw_skip(reason::nonfinite_buffer, decision_.where, loss, decision_.norm);
  if (auto const why = parts_.guards.spike().judge(loss, decision_.norm)) throw_skip(*why, "", loss, decision_.norm);
  if (parts_.observer->reads_gradients()) parts_.show_gradients(decision_.norm, checked.unscaled());
  auto& layers = parts_.pass.layers();
  if (layers.is_on()) layers.gradients(checked.norms(), checked.factor());
}

KEEL_BODY void closure_update::throw_skip(reason why, std::string where, double loss, double norm) {
  decision_.skip_reason = why;
  decision_.where = std::move(where);
  if (evaluations_ == 1) decision_.loss = loss, decision_.norm = norm;
  throw closure_abort();
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
