// An update of several ranks: they agree on what their windows came to, add up their gradients, and each judges the sum, on its host or
// on its device.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/collective/collectives.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>
#include <keel/shard/replication.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/late_update.hpp>
#include <keel/step/update_decision.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

/// The step's own functions for it; the step outlives this.
template <class Step>
class replicated_update {
 public:
  explicit replicated_update(Step& step) : step_(step), sums_(step.pass_.sums()) {}

  /// Before the update's last micro-batch: where the host needs nothing of its loss, or knows it before the backward pass, the ranks agree
  /// while that runs.
  void agree_in_backward() {
    // A micro-batch that is cut has several backward passes, and a hook behind it may look at gradients or be in a collective.
    bool const is_alone = step_.pieces() == 1 && !reads_losses(step_.observe_);
    bool const is_known = on_device() || !step_.losses_stay_on_device_;
    if (!ranks().is_shared() || !is_known || !is_alone) return;
    step_.pass_.tell_before_backward([&step = step_](loss_accumulator const& tally, double weight) {
      replicated_update(step).begin_agreement(tally, weight);
    });
  }

  update_decision decide() {
    if (on_device()) late_update<Step>(step_).settle_before();
    window_of_ranks const all = agree();
    bool const counts = all.loss_weight > 0.0;
    if (counts && all.is_finite()) told_if_not_of_ranks([&] { ranks().sum_gradients(); });
    require_declared_update(step_.present_value().accumulate, step_.micro_batches_, all.rows, step_.is_first());
    update_decision found{{step_.scaler_.factor(), 0.0, all.tokens, all.rows, on_device()}};
    found.facts.parts = sums_.parts;
    found.facts.origin = origin_of(sums_);
    if (!counts || !all.is_finite()) {
      skip(found, all);
      return found;
    }
    told_if_not_of_ranks([&] { ranks().share_buffers(); });
    // NOLINTBEGIN(bugprone-unchecked-optional-access): the loss of this rank is finite too
    // Of a sum each micro-batch is one term; a rank whose rows all count for nothing has none.
    whole_->take_weight(is_sum() ? 1.0 : all.weight);
    if (on_device()) {
      notify_before_gather([&] {
        at::Tensor const loss = loss_on_device(found.facts, all);
        late_update<Step>(step_).decide(found, std::move(*whole_), loss, losses_);
      });
      return found;
    }
    found.loss = found.norm = mean_of(all.loss, all);
    if (all.names != 0 && ranks().is_shared()) {
      std::vector<double> named = sums_.parts.sums(Step::read, is_sum());
      ranks().sum(named);
      found.facts.parts.put(named, is_sum());
    }
    notify_before_gather([&] {
      step_.judge(found, std::move(*whole_).unscale().check());
      if (found.clipped) found.clipped->write_for(step_.optimizer_);
    });
    // NOLINTEND(bugprone-unchecked-optional-access)
    return found;
  }

 private:
  replication& ranks() { return step_.replication_; }
  bool is_sum() const { return step_.recipe_value().accumulate.sum; }
  bool on_device() const { return step_.decides_on_device_; }
  template <class Loss>
  Loss mean_of(Loss const& loss, window_of_ranks const& all) const {
    return is_sum() ? loss : loss / all.loss_weight;
  }

  /// `loss`: of this rank, where its host knows it.
  window_of_ranks window_of(double loss, double loss_weight, double unit, double weight) {
    double const counted = is_sum() && loss_weight > 0.0 ? 1.0 : loss_weight;
    return {.loss = on_device() || counted == 0.0 ? 0.0 : loss * counted,
            .loss_weight = counted,
            .weight = weight,
            .unit = unit,
            .rows = sums_.rows,
            .tokens = sums_.tokens,
            .updates = step_.attempted(),
            .nonfinite_on = on_device() || std::isfinite(loss) ? -1 : ranks().world().rank(),
            .names = sums_.parts.names(),
            .on_device = on_device()};
  }

  void begin_agreement(loss_accumulator const& tally, double weight) {
    auto const [unit, total] = step_.pass_.weights_with(weight);
    if (on_device()) {
      if (!is_lost()) ranks().begin_agreement(window_of(0.0, sums_.loss.weight + tally.weight, unit, total));
      return;
    }
    loss_accumulator loss = sums_.loss;
    is_sum() ? loss.add_term(tally) : loss.add(tally);
    if (std::isfinite(loss.mean())) ranks().begin_agreement(window_of(loss.mean(), loss.weight, unit, total));
  }

  window_of_ranks agree() {
    if (is_lost()) {
      window_of_ranks lost = window_of(0.0, sums_.loss.weight, 0.0, 0.0);
      lost.nonfinite_on = ranks().world().rank();
      return ranks().agree(lost);
    }
    double loss = sums_.loss.mean();
    if (step_.pass_.has_zero_weight()) {
      loss = 0.0;
    } else if (!on_device()) {
      if (sums_.loss.is_on_device()) loss = Step::read(sums_.loss.mean_on_device());
      if (!std::isfinite(loss)) return ranks().agree(window_of(loss, sums_.loss.weight, 0.0, 0.0));
    }
    replication::require_dense(step_.parameters_);
    if (on_device() && ranks().is_shared()) prepare_losses();
    whole_.emplace(step_.pass_.complete());
    return ranks().agree(window_of(loss, sums_.loss.weight, whole_->unit(), whole_->weight()));
  }

  /// The host knows that a loss is not finite, without a look at the device.
  bool is_lost() const { return on_device() && !sums_.exception.empty(); }

  /// What the host knows of it is the same on all ranks.
  void skip(update_decision& found, window_of_ranks const& all) {
    found.loss = found.norm = mean_of(all.loss, all);
    if (all.nonfinite_on < 0 && all.loss_weight == 0.0) {
      found.skip_reason = reason::zero_weight;
      found.loss = found.norm = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    found.skip_reason = reason::nonfinite_loss;
    found.where = sums_.parts.first_nonfinite(Step::read);
    if (ranks().is_shared()) {
      std::string const which = "rank " + std::to_string(std::max(all.nonfinite_on, 0));
      if (found.where.empty()) found.where = which;
      // Only there is anything to be found.
      if (whole_)
        found.facts.origin = on_device() ? "the loss function of " + which + " threw behind a value that is not finite"
                                         : "the loss of " + which + " is not finite, and this rank's is";
    }
  }

  /// What the sums of losses on the devices need: one of them that found no memory between two would leave the others in the second.
  void prepare_losses() {
    at::NoGradGuard const no_grad;
    // A rank whose rows all count for nothing has no loss.
    auto const zero = [this] { return at::zeros({1}, step_.parameters_.tensors.front().options().dtype(at::kDouble)); };
    mine_ =
        sums_.loss.is_on_device() ? (sums_.loss.mean_on_device() * (is_sum() ? 1.0 : sums_.loss.weight)).reshape({1}) : zero();
    losses_ = at::empty({ranks().world().size()}, mine_.options());
    if (sums_.parts.names() != 0) named_ = sums_.parts.sums_on_device(mine_.device(), is_sum());
  }
  /// Of all ranks, a double scalar there, and the named ones among the update's facts.
  at::Tensor loss_on_device(update_facts& facts, window_of_ranks const& all) {
    if (!ranks().is_shared()) return sums_.loss.mean_on_device();
    at::NoGradGuard const no_grad;
    if (auto const under_way = begin_all_gather(ranks().world(), mine_, losses_)) under_way->wait();
    if (all.names != 0) {
      all_reduce(ranks().world(), named_);
      facts.parts.put_on_device(named_, is_sum());
    }
    return mean_of(losses_.sum(), all);
  }

  template <class Run>
  void notify_before_gather(Run const& run) {
    if constexpr (Step::has_ladder) {
      told_if_not_of_ranks(run);
    } else {
      ranks().notify_before_gather(run);
    }
  }
  /// As replication::abort_peers_on_exception. Where memory ran out, the step of a recipe with a ladder says so.
  template <class Run>
  void told_if_not_of_ranks(Run const& run) {
    ranks().abort_peers_on_exception(run, [](std::exception const& thrown) {
      return dynamic_cast<memory_of_other_rank const*>(&thrown) != nullptr || (Step::has_ladder && is_out_of_memory(thrown));
    });
  }

  Step& step_;
  update_sums const& sums_;
  std::optional<gradients<stage::scaled>> whole_;  ///< where this rank's loss is finite, or on the device
  // There, of several ranks.
  at::Tensor mine_, named_;
  at::Tensor losses_;  ///< of each rank, by its weight
};

}  // namespace keel::detail::inline KEEL_MODE
