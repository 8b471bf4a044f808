// An update of several ranks: they agree on what their windows came to, add up their gradients, and each judges the sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <keel/accumulate/declared_batch.hpp>
#include <keel/core/error.hpp>
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
  /// `first`: the run's first update.
  replicated_update(Step& step, bool first) : step_(step), sums_(step.pass_.sums()), first_(first) {}

  update_decision decide() {
    window_of_ranks const all = agree();
    require_declared_update(step_.present_value().accumulate, step_.micro_batches_, all.rows, first_);
    update_decision found{{step_.scaler_.factor(), 0.0, all.tokens, all.rows, false}};
    found.facts.parts = sums_.parts;
    found.facts.origin = origin_of(sums_);
    found.loss = found.norm = is_sum() ? all.loss : all.loss / all.loss_weight;
    if (all.nonfinite_on >= 0 || !std::isfinite(found.loss)) {
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
    // NOLINTBEGIN(bugprone-unchecked-optional-access): the loss of this rank is finite too
    add_up(all);
    if (all.names != 0 && ranks().is_shared()) {
      std::vector<double> named = sums_.parts.sums(Step::read, is_sum());
      ranks().sum(named);
      found.facts.parts.put(named, is_sum());
    }
    if (!is_sum()) whole_->take_weight(all.weight);
    ranks().told_before_shares([&] {
      step_.judge(found, std::move(*whole_).unscale().check());
      if (found.clipped) found.clipped->write_for(step_.optimizer_);
    });
    // NOLINTEND(bugprone-unchecked-optional-access)
    return found;
  }

 private:
  replication& ranks() { return step_.replication_; }
  bool is_sum() const { return step_.recipe_value().accumulate.sum; }

  window_of_ranks agree() {
    window_of_ranks mine{
        .rows = sums_.rows, .tokens = sums_.tokens, .updates = step_.updates_ + step_.skipped_, .names = sums_.parts.names()};
    double const loss = sums_.loss.is_on_device() ? Step::read(sums_.loss.mean_on_device()) : sums_.loss.mean();
    mine.loss_weight = is_sum() ? 1.0 : sums_.loss.weight;
    mine.loss = loss * mine.loss_weight;
    if (std::isfinite(loss)) {
      replication::require_dense(step_.parameters_);
      whole_.emplace(step_.pass_.complete());
      mine.unit = whole_->unit();
      mine.weight = whole_->weight();
      for (at::Tensor const& one : step_.parameters_.tensors)
        mine.without_gradient += one.requires_grad() && !one.grad().defined() ? 1 : 0;
    } else {
      mine.nonfinite_on = ranks().world().rank();
    }
    return ranks().agree(mine);
  }

  void add_up(window_of_ranks const& all) {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the loss of this rank is finite too
    double const unit = whole_->unit();
    try {
      ranks().sum_gradients(step_.parameters_, unit == 0.0 || unit == all.unit ? 1.0 : unit / all.unit,
                            all.without_gradient == 0);
      ranks().share_buffers(step_.model_);
    } catch (world_error const&) {
      throw;
    } catch (std::exception const& thrown) {
      // The others are in a sum that this rank does not come to.
      ranks().world().abort(thrown.what());
      throw;
    }
  }

  Step& step_;
  update_sums const& sums_;
  bool first_;
  std::optional<gradients<stage::scaled>> whole_;  ///< where this rank's loss is finite
};

}  // namespace keel::detail
