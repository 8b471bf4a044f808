// Definitions for replicated_update.hpp.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/step/replicated_update.hpp>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY void replicated_update::overlap_agreement_with_backward() {
  // A split micro-batch has several backward passes, and a hook that runs after it may read gradients or call a collective.
  // Under zero<3> the ranks already communicate during the pass, and a hook may exist on some ranks only.
  bool const reads_losses = parts_.observer->reads_losses() && !parts_.ranks.shards_parameters();
  bool const is_single_pass = parts_.ladder.relief().pieces == 1 && !reads_losses;
  bool const is_known = on_device() || !parts_.losses_stay_on_device;
  parts_.ranks.set_overlaps(is_known && is_single_pass);
  if (!parts_.ranks.is_shared() || !is_known || !is_single_pass) return;
  parts_.pass.set_before_backward_hook(
      [this](loss_accumulator const& tally, double weight, at::Tensor const& loss) { begin_agreement(tally, weight, loss); });
}

KEEL_BODY update_decision replicated_update::decide() {
  agreement of_ranks = agree(true);
  update_summary const& all = of_ranks.all;
  bool const counts = all.loss_weight > 0.0;
  sum_gradients(all);
  require_declared_update(parts_.current().accumulate, parts_.micro_batches, all.rows, parts_.is_first());
  update_decision decision{{parts_.scaler.factor(), 0.0, all.tokens, all.rows, on_device()}};
  decision.facts.named_losses = sums().named_losses;
  decision.facts.origin = origin_of(sums());
  if (!counts || !all.is_finite()) {
    skip(decision, of_ranks);
    return decision;
  }
  abort_peers_on_exception([&] { parts_.ranks.share_buffers(); });
  // NOLINTBEGIN(bugprone-unchecked-optional-access): the loss of this rank is finite too
  // A sum is not divided by a weight. Set it here, because it is still 0 on a rank whose micro-batches have weight zero.
  of_ranks.whole->set_total_weight(is_sum() ? 1.0 : all.weight);
  if (parts_.ranks.shards_gradients())
    of_ranks.whole->use_shards(parts_.ranks.gradient_shards(), [this](c10::function_ref<gradient_measure()> of_shards) {
      return parts_.ranks.measure(of_shards);
    });
  if (on_device()) {
    notify_before_gather([&] {
      at::Tensor const loss = loss_on_device(decision.facts, of_ranks);
      device_.decide(decision, std::move(*of_ranks.whole), loss, of_ranks.losses);
    });
    return decision;
  }
  decision.loss = decision.norm = mean_of(all.loss, all);
  if (all.names != 0 && parts_.ranks.is_shared()) {
    std::vector<double> named = sums().named_losses.sums([this](at::Tensor const& one) { return parts_.read(one); }, is_sum());
    parts_.ranks.sum(named);
    decision.facts.named_losses.set_sums(named, is_sum());
  }
  notify_before_gather([&] {
    parts_.judge(decision, std::move(*of_ranks.whole).unscale().check());
    if (decision.clipped) decision.clipped->apply_factor_for(parts_.optimizer);
  });
  // NOLINTEND(bugprone-unchecked-optional-access)
  return decision;
}

KEEL_BODY void replicated_update::end_micro_batch() {
  update_summary const all = agree(false).all;
  sum_gradients(all);
  parts_.ranks.end_micro_batch(all.is_finite());
  parts_.pass.gradients_sent();
}

KEEL_BODY void replicated_update::sum_gradients(update_summary const& all) {
  if (all.loss_weight > 0.0 && all.is_finite()) abort_peers_on_exception([this] { parts_.ranks.sum_gradients(); });
}

KEEL_BODY void replicated_update::apply(update_decision& decision) {
  on_device() ? device_.apply(decision) : host_.apply(decision);
}

KEEL_BODY update_summary replicated_update::make_update_summary(double loss, double loss_weight, double unit,
                                                                double weight) const {
  double const counted = is_sum() && loss_weight > 0.0 ? 1.0 : loss_weight;
  return {.loss = on_device() || counted == 0.0 ? 0.0 : loss * counted,
          .loss_weight = counted,
          .weight = weight,
          .unit = unit,
          .rows = sums().rows,
          .tokens = sums().tokens,
          .updates = parts_.attempted(),
          .first_nonfinite_rank = on_device() || std::isfinite(loss) ? -1 : parts_.ranks.world().rank(),
          .names = sums().named_losses.names_checksum(),
          .on_device = on_device()};
}

KEEL_BODY void replicated_update::begin_agreement(loss_accumulator const& tally, double weight, at::Tensor const& loss) {
  auto const [unit, total] = parts_.pass.weights_with(weight);
  if (on_device()) {
    if (!has_nonfinite_loss())
      parts_.ranks.begin_agreement(make_update_summary(0.0, sums().loss.weight + tally.weight, unit, total), loss);
    return;
  }
  loss_accumulator all = sums().loss;
  is_sum() ? all.add_term(tally) : all.add(tally);
  if (std::isfinite(all.mean())) parts_.ranks.begin_agreement(make_update_summary(all.mean(), all.weight, unit, total), loss);
}

KEEL_BODY replicated_update::agreement replicated_update::agree(bool complete) {
  agreement of_ranks;
  if (has_nonfinite_loss()) {
    update_summary lost = make_update_summary(0.0, sums().loss.weight, 0.0, 0.0);
    lost.first_nonfinite_rank = parts_.ranks.world().rank();
    of_ranks.all = parts_.ranks.agree(lost);
    return of_ranks;
  }
  double loss = sums().loss.mean();
  if (parts_.pass.has_zero_weight()) {
    loss = 0.0;
  } else if (!on_device()) {
    if (sums().loss.is_on_device()) loss = parts_.read(sums().loss.mean_on_device());
    if (!std::isfinite(loss)) {
      of_ranks.all = parts_.ranks.agree(make_update_summary(loss, sums().loss.weight, 0.0, 0.0));
      return of_ranks;
    }
  }
  replication::require_dense(parts_.parameters);
  if (!complete) {
    parts_.pass.require_unchanged();
    auto const [unit, weight] = parts_.pass.weights_with(0.0);
    of_ranks.all = parts_.ranks.agree(make_update_summary(loss, sums().loss.weight, unit, weight));
    return of_ranks;
  }
  if (on_device() && parts_.ranks.is_shared()) prepare_losses(of_ranks);
  auto const& whole = of_ranks.whole.emplace(parts_.pass.complete(parts_.ranks.has_sent_gradients()));
  of_ranks.all = parts_.ranks.agree(make_update_summary(loss, sums().loss.weight, whole.unit(), whole.weight()));
  return of_ranks;
}

KEEL_BODY void replicated_update::skip(update_decision& decision, agreement const& of_ranks) const {
  update_summary const& all = of_ranks.all;
  decision.loss = decision.norm = mean_of(all.loss, all);
  if (all.first_nonfinite_rank < 0 && all.loss_weight == 0.0) {
    decision.skip_reason = reason::zero_weight;
    decision.loss = decision.norm = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  decision.skip_reason = reason::nonfinite_loss;
  decision.where = sums().named_losses.first_nonfinite([this](at::Tensor const& one) { return parts_.read(one); });
  if (!parts_.ranks.is_shared()) return;
  std::string const which = "rank " + std::to_string(std::max(all.first_nonfinite_rank, 0));
  if (decision.where.empty()) decision.where = which;
  // Only that rank can trace the value.
  if (of_ranks.whole)
    decision.facts.origin = on_device() ? "the loss function of " + which + " threw after computing a non-finite value"
                                        : "non-finite loss on " + which + "; finite on this rank";
}

KEEL_BODY void replicated_update::prepare_losses(agreement& of_ranks) const {
  at::NoGradGuard const no_grad;
  // A rank of weight zero has no loss.
  auto const zero = [this] { return at::zeros({1}, parts_.parameters.tensors.front().options().dtype(at::kDouble)); };
  of_ranks.local =
      sums().loss.is_on_device() ? (sums().loss.mean_on_device() * (is_sum() ? 1.0 : sums().loss.weight)).reshape({1}) : zero();
  of_ranks.losses = at::empty({parts_.ranks.world().size()}, of_ranks.local.options());
  if (sums().named_losses.names_checksum() != 0)
    of_ranks.named = sums().named_losses.sums_on_device(of_ranks.local.device(), is_sum());
}

KEEL_BODY at::Tensor replicated_update::loss_on_device(update_facts& facts, agreement& of_ranks) const {
  if (!parts_.ranks.is_shared()) return sums().loss.mean_on_device();
  at::NoGradGuard const no_grad;
  auto const& world = parts_.ranks.world();
  if (auto const pending = begin_all_gather(world, of_ranks.local, of_ranks.losses)) pending->wait();
  if (of_ranks.all.names != 0) {
    all_reduce(world, of_ranks.named);
    facts.named_losses.set_sums_on_device(of_ranks.named, is_sum());
  }
  return mean_of(of_ranks.losses.sum(), of_ranks.all);
}

KEEL_BODY void replicated_update::notify_before_gather(c10::function_ref<void()> run) {
  if (parts_.has_ladder()) {
    abort_peers_on_exception(run);
  } else {
    parts_.ranks.notify_before_gather(run);
  }
}

KEEL_BODY void replicated_update::abort_peers_on_exception(c10::function_ref<void()> run) {
  parts_.ranks.abort_peers_on_exception(run, [this](std::exception const& thrown) {
    return dynamic_cast<out_of_memory_on_peer const*>(&thrown) != nullptr || (parts_.has_ladder() && is_out_of_memory(thrown));
  });
}

}  // namespace keel::detail::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
