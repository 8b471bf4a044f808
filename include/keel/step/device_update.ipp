// Definitions for device_update.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <keel/core/error.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/exposed_gradients.hpp>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY update_decision device_update::decide() {
  update_decision decision = parts_.begin_decision();
  if (decision.skip_reason) return decision;
  update_sums const& sums = parts_.pass.sums();
  // No gradients: nothing to decide on the device.
  if (!sums.exception.empty() && !parts_.pass.has_gradients()) {
    decision.skip_reason = reason::nonfinite_loss;
    return decision;
  }
  decide(decision, parts_.pass.complete(), sums.loss.mean_on_device());
  return decision;
}

KEEL_BODY void device_update::decide(update_decision& decision, gradients<stage::scaled> whole, at::Tensor const& loss,
                                     at::Tensor const& weighted_losses) {
  auto unscaled = std::move(whole).unscale();
  {
    auto const shards = parts_.ranks.sharded_gradients();
    parts_.engine->prepare();
  }
  parts_.ranks.prepare_update();
  decision.limits = {parts_.guards.spike().loss_limit(), parts_.guards.spike().gradient_norm_limit(),
                     parts_.clip->norm_limit(parts_.current().clip)};
  if (double const most = max_squarable_norm(parts_.optimizer, parts_.parameters); decision.limits.clip > most)
    decision.limits.squarable = most;
  std::vector<at::Tensor> extra;
  if (weighted_losses.defined()) extra.push_back(weighted_losses);
  if (decision.facts.named_losses.names_checksum() != 0) extra.push_back(decision.facts.named_losses.means_on_device());
  device_decision const& decided = decision.decided.emplace(decide_on_device(
      std::move(unscaled), loss, decision.limits, parts_.pass.buffers().any_nonfinite_on_device(loss.device()), extra));
  // Synchronizes: the host waits for the decision.
  if (parts_.observer->reads_gradients() && parts_.read(decided.should_apply) != 0.0)
    parts_.show_gradients(parts_.read(decided.norm), unscaled_gradients(parts_.parameters, decided.unscaling));
  auto& layers = parts_.pass.layers();
  if (layers.is_on()) layers.gradients(decided.unscaling);
}

KEEL_BODY void device_update::apply(update_decision& decision) {
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): decide() has made it
  device_decision& decided = *decision.decided;
  parts_.ranks.update([&] {
    parts_.begin_update(decision.facts);
    parts_.half_updated = true;
    parts_.step_optimizer([&] {
      {
        auto const shards = parts_.ranks.sharded_gradients();
        parts_.engine->update_where(decided.should_apply, decided.factor);
      }
      if (parts_.scale_on_device) parts_.scale_on_device->update(decided.should_apply, decided.overflowed);
      parts_.pass.buffers().restore_unless(decided.should_apply);
    });
  });
  parts_.pass.layers().after_update(parts_.begun() + 1);
  parts_.repeated.take(parts_.optimizer, parts_.parameters);
}

KEEL_BODY update_decision device_update::conclude(pending_update update) {
  update_decision decision{std::move(update.facts)};
  if (!update.result) {
    decision.skip_reason = update.skip_reason;
    decision.where = std::move(update.where);
    decision.loss = decision.norm = std::numeric_limits<double>::quiet_NaN();
    return decision;
  }
  require_completed(*update.result);
  auto const [loss, norm, applied, has_nonfinite_buffer, extra] = update.result->read();
  std::size_t const ranks = parts_.ranks.is_shared() ? static_cast<std::size_t>(parts_.ranks.world().size()) : 0;
  decision.facts.named_losses.set_means(std::span(extra).subspan(ranks));
  decision.loss = loss;
  decision.norm = norm;
  decision.was_clipped = norm > update.limits.clip;
  if (applied) return decision;
  {
    auto const shards = parts_.ranks.sharded_state();
    parts_.engine->undo_update();
  }
  reason why = skip_reason_of(loss, norm, update.limits, parts_.nonfinite_gradient_reason());
  if (has_nonfinite_buffer && std::isfinite(loss) && std::isfinite(norm)) why = reason::nonfinite_buffer;
  decision.skip_reason = why;
  if (why == reason::nonfinite_gradient && std::isfinite(norm) && norm > update.limits.squarable) {
    decision.facts.origin = describe_unsquarable_norm(norm);
  } else if (why == reason::nonfinite_loss) {
    decision.where = decision.facts.named_losses.first_nonfinite([this](at::Tensor const& one) { return parts_.read(one); });
    name_rank(decision, std::span(extra).first(ranks));
  } else if (why == parts_.nonfinite_gradient_reason()) {
    if (auto const parameter = update.result->first_nonfinite()) decision.where = parts_.parameters.names[*parameter];
  }
  return decision;
}

/// The device may wait in an all-reduce for a rank that exited, so the world's timeout limits the wait.
KEEL_BODY void device_update::require_completed(device_result const& result) const {
  auto const& world = parts_.ranks.world();
  // Ranks within one process have no timeout.
  bool const is_limited = world.size() > 1 && world.timeout() > std::chrono::milliseconds(0);
  if (!is_limited || result.wait_for(world.timeout())) return;
  std::string const message = "rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) + ": update " +
                              std::to_string(parts_.updates + 1) + " has not completed on the device within " +
                              std::to_string(world.timeout().count() / 1000) +
                              " s. It is probably waiting in an all-reduce for a rank that is gone or hanging. Check the last "
                              "output of the other ranks, then restart all ranks.";
  world.abort(message);
  throw world_error("E25", message);
}

KEEL_BODY void device_update::name_rank(update_decision& decision, std::span<double const> losses) const {
  auto const bad = std::find_if(losses.begin(), losses.end(), [](double one) { return !std::isfinite(one); });
  if (bad == losses.end()) return;
  // Only that rank can trace the value.
  bool const is_other = std::isfinite(losses[static_cast<std::size_t>(parts_.ranks.world().rank())]);
  std::string const which = "rank " + std::to_string(bad - losses.begin());
  if (is_other || decision.where.empty()) decision.where = which;
  if (is_other && decision.facts.origin.empty())
    decision.facts.origin = "non-finite loss on " + which + "; finite on this rank";
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
