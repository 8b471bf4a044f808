// An update of several ranks: they agree on what their windows came to, add up their gradients, and each judges the sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>
#include <keel/shard/replication.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/update_decision.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail {

/// The step's own functions for it; the step outlives this.
template <class Step>
class replicated_update {
 public:
  explicit replicated_update(Step& step) : step_(step), sums_(step.pass_.sums()) {}

  /// Before the update's last micro-batch: where the host knows its loss before the backward pass, the ranks agree while that runs.
  void agree_in_backward() {
    // A micro-batch that is cut has several backward passes, and a hook behind it may look at gradients or be in a collective.
    bool const is_alone = step_.pieces() == 1 && !reads_losses(step_.observe_);
    if (!ranks().is_shared() || step_.losses_stay_on_device_ || !is_alone) return;
    step_.pass_.tell_before_backward([&step = step_](loss_accumulator const& tally, double weight) {
      replicated_update(step).begin_agreement(tally, weight);
    });
  }

  update_decision decide() {
    window_of_ranks const all = agree();
    if (all.is_finite()) told_if_not_of_ranks([&] { ranks().sum_gradients(); });
    require_declared_update(step_.present_value().accumulate, step_.micro_batches_, all.rows, step_.is_first());
    update_decision found{{step_.scaler_.factor(), 0.0, all.tokens, all.rows, false}};
    found.facts.parts = sums_.parts;
    found.facts.origin = origin_of(sums_);
    found.loss = found.norm = is_sum() ? all.loss : all.loss / all.loss_weight;
    if (!all.is_finite()) {
      found.skip_reason = reason::nonfinite_loss;
      found.where = sums_.parts.first_nonfinite(Step::read);
      if (ranks().is_shared()) {
        std::string const which = "rank " + std::to_string(std::max(all.nonfinite_on, 0));
        if (found.where.empty()) found.where = which;
        // Only there is anything to be found.
        if (whole_) found.facts.origin = "the loss of " + which + " is not finite, and this rank's is";
      }
      return found;
    }
    told_if_not_of_ranks([&] { ranks().share_buffers(); });
    if (all.names != 0 && ranks().is_shared()) {
      std::vector<double> named = sums_.parts.sums(Step::read, is_sum());
      ranks().sum(named);
      found.facts.parts.put(named, is_sum());
    }
    // NOLINTBEGIN(bugprone-unchecked-optional-access): the loss of this rank is finite too
    if (!is_sum()) whole_->take_weight(all.weight);
    auto const judge = [&] {
      step_.judge(found, std::move(*whole_).unscale().check());
      if (found.clipped) found.clipped->write_for(step_.optimizer_);
    };
    if constexpr (Step::has_ladder) {
      told_if_not_of_ranks(judge);
    } else {
      ranks().told_before_shares(judge);
    }
    // NOLINTEND(bugprone-unchecked-optional-access)
    return found;
  }

 private:
  replication& ranks() { return step_.replication_; }
  bool is_sum() const { return step_.recipe_value().accumulate.sum; }

  window_of_ranks window_of(double loss, double loss_weight, double unit, double weight) {
    double const counted = is_sum() ? 1.0 : loss_weight;
    return {.loss = loss * counted,
            .loss_weight = counted,
            .weight = weight,
            .unit = unit,
            .rows = sums_.rows,
            .tokens = sums_.tokens,
            .updates = step_.updates_ + step_.skipped_,
            .nonfinite_on = std::isfinite(loss) ? -1 : ranks().world().rank(),
            .names = sums_.parts.names()};
  }

  void begin_agreement(loss_accumulator const& tally, double weight) {
    loss_accumulator loss = sums_.loss;
    is_sum() ? loss.add_term(tally) : loss.add(tally);
    if (!std::isfinite(loss.mean())) return;
    auto const [unit, total] = step_.pass_.weights_with(weight);
    ranks().begin_agreement(window_of(loss.mean(), loss.weight, unit, total));
  }

  window_of_ranks agree() {
    double const loss = sums_.loss.is_on_device() ? Step::read(sums_.loss.mean_on_device()) : sums_.loss.mean();
    if (!std::isfinite(loss)) return ranks().agree(window_of(loss, sums_.loss.weight, 0.0, 0.0));
    replication::require_dense(step_.parameters_);
    whole_.emplace(step_.pass_.complete());
    return ranks().agree(window_of(loss, sums_.loss.weight, whole_->unit(), whole_->weight()));
  }

  /// As replication::told_at_once. Where memory ran out, the step of a recipe with a ladder says so.
  template <class Run>
  void told_if_not_of_ranks(Run const& run) {
    ranks().told_at_once(run, [](std::exception const& thrown) {
      return dynamic_cast<memory_of_other_rank const*>(&thrown) != nullptr || (Step::has_ladder && is_out_of_memory(thrown));
    });
  }

  Step& step_;
  update_sums const& sums_;
  std::optional<gradients<stage::scaled>> whole_;  ///< where this rank's loss is finite
};

}  // namespace keel::detail
