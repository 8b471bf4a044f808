// Definitions for host_update.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <cmath>
#include <keel/step/host_update.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY update_decision host_update::decide() {
  update_decision decision = parts_.begin_decision();
  if (decision.skip_reason) return decision;
  update_sums const& sums = parts_.pass.sums();
  auto const read = [this](at::Tensor const& one) { return parts_.read(one); };
  auto const is_finite = [&](double loss) {
    decision.loss = decision.norm = loss;
    if (std::isfinite(loss)) return true;
    decision.skip_reason = reason::nonfinite_loss;
    decision.where = sums.named_losses.first_nonfinite(read);
    return false;
  };
  if (!parts_.losses_stay_on_device && !is_finite(sums.loss.mean())) return decision;
  auto result = parts_.pass.complete().unscale().check();
  // The host already waited for the norm, so reading the loss does not wait again.
  if (parts_.losses_stay_on_device && !is_finite(read(sums.loss.mean_on_device()))) return decision;
  parts_.judge(decision, std::move(result));
  return decision;
}

KEEL_BODY void host_update::apply(update_decision& decision) {
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): an update that is not skipped has them
  gradients<stage::clipped>& clipped = *decision.clipped;
  decision.was_clipped = clipped.clipped();
  parts_.ranks.update([&] {
    // A policy that inspects elements saw only this rank's shards.
    if (parts_.ranks.shards_gradients() && needs_materialized_gradients(parts_.current().clip))
      decision.was_clipped = parts_.ranks.world().combine(reduce::max{}, decision.was_clipped);
    parts_.begin_update(decision.facts);
    parts_.clip->commit();
    parts_.half_updated = true;
    parts_.step_optimizer([&] {
      auto const shards = parts_.ranks.sharded_gradients();
      std::move(clipped).step(parts_.optimizer);
    });
  });
  parts_.pass.layers().after_update(parts_.updates + 1);
  parts_.repeated.take(parts_.optimizer, parts_.parameters);
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
