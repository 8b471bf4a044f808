// An update that the device decides: the host launches it, and learns one update later what became of it. The same numbers take the same
// branches as where the host decides. Of several ranks each device decides by the sums of all, and so alike.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <cmath>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/observer.hpp>
#include <keel/step/shown_gradients.hpp>
#include <keel/step/update_decision.hpp>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace keel::detail {

/// The step's own functions for it; the step outlives this.
template <class Step>
class late_update {
 public:
  explicit late_update(Step& step) : step_(step) {}

  /// The update before this one, which may change the scale, the rate and the limits.
  void settle_before() {
    name_out_of_memory_inside_update(step_.updates_, [&] {
      if (auto const before = step_.settle()) step_.settled_ = before;
    });
  }

  /// Checks and clips on the device, and allocates what the update takes; nothing has changed yet. `loss`: the update's mean, a double
  /// scalar there.
  void decide(update_decision& found, gradients<stage::scaled> whole, at::Tensor const& loss) {
    auto unscaled = std::move(whole).unscale();
    step_.replication_.inside_with_gradients([&] { step_.engine_->prepare(); });
    step_.replication_.prepare_update();
    found.limits = {step_.guards_.spike().loss_limit(), step_.guards_.spike().gradient_norm_limit(),
                    norm_limit<typename Step::clip_policy>(step_.clip_state_, step_.present_value().clip)};
    device_decision const& decided = found.decided.emplace(decide_on_device(std::move(unscaled), loss, found.limits));
    if (reads_gradients(step_.observe_)) show_gradients(decided);
    auto& layers = step_.pass_.layers();
    if (layers.is_on()) layers.gradients(decided.unscaling);
  }

  /// The host knows that a loss is not finite, and skips the update. Of what became of the one before it, hooks have learned.
  void leave_to_host(update_decision& found) {
    step_.settled_.reset();
    found.facts.late = step_.decides_on_device_ = false;
    found.skip_reason = reason::nonfinite_loss;
    found.loss = found.norm = std::numeric_limits<double>::quiet_NaN();
  }

  /// Launches the update and says what became of the one before it.
  step_outcome finish(update_decision found) {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): decide() has made it
    device_decision& decided = *found.decided;
    step_.replication_.update([&] {
      step_.begin_update(found.facts);
      step_.half_updated_ = true;
      step_.step_optimizer([&] {
        step_.replication_.inside_with_gradients([&] { step_.engine_->update_where(decided.happens, decided.factor); });
        if (step_.device_scale_) step_.device_scale_->update(decided.happens, decided.overflowed);
        step_.pass_.buffers().restore_unless(decided.happens);
      });
    });
    step_.pass_.layers().after_update(step_.begun() + 1);
    step_.repeated_.take(step_.optimizer_, step_.parameters_);
    found.facts.memory = step_.pass_.memory().end();
    step_.pass_.phases().stop();
    found.facts.times = step_.pass_.phases().take();
    step_.pending_.emplace(pending_update{found.facts, found.limits, std::move(decided.verdict)});
    step_.half_updated_ = false;
    step_.end_update();
    step_.replication_.told_at_once([&] { step_.replication_.look_at_replicas(); });
    return std::exchange(step_.settled_, std::nullopt).value_or(result::pending{});
  }

  /// The device's verdict is the host's.
  step_outcome close(pending_update update) {
    auto const [loss, norm, applied] = update.verdict.read();
    if (applied) return step_.accept(update.facts, loss, norm, norm > update.limits.clip);
    step_.replication_.inside([&] { step_.engine_->take_back(); });
    reason const why = skip_reason_of(loss, norm, update.limits, Step::bad_gradient);
    std::string where;
    if (why == reason::nonfinite_loss) {
      where = update.facts.parts.first_nonfinite(Step::read);
      if (update.facts.losses.defined()) name_rank(update.facts, where);
    } else if (auto const found = why == Step::bad_gradient ? update.verdict.first_nonfinite() : std::nullopt) {
      where = step_.parameters_.names[*found];
    }
    return step_.skip(update.facts, why, where, loss, norm);
  }

 private:
  /// The first rank whose loss is not finite, where this rank's own has no name that says more.
  void name_rank(update_facts& facts, std::string& where) const {
    at::Tensor const losses = facts.losses.cpu();
    auto const is_finite = [&](std::int64_t rank) { return std::isfinite(losses.data_ptr<double>()[rank]); };
    std::int64_t first = 0;
    while (first < losses.numel() && is_finite(first)) ++first;
    if (first == losses.numel()) return;
    // Only there is anything to be found.
    bool const is_other = is_finite(step_.replication_.world().rank());
    std::string const which = "rank " + std::to_string(first);
    if (is_other || where.empty()) where = which;
    if (is_other && facts.origin.empty()) facts.origin = "the loss of " + which + " is not finite, and this rank's is";
  }

  /// The host waits here for whether the update takes place.
  void show_gradients(device_decision const& decided) {
    if (Step::read(decided.happens) == 0.0) return;
    step_.show_gradients(Step::read(decided.norm), unscaled_gradients(step_.parameters_, decided.unscaling));
  }

  Step& step_;
};

}  // namespace keel::detail
