// An update that the device decides: the host launches it, and learns one update later what became of it. The same numbers take the same
// branches as where the host decides. Of several ranks each device decides by the sums of all, and so alike.
#pragma once

#include <keel/libtorch/ivalue_first.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <keel/core/error.hpp>
#include <keel/core/out_of_memory.hpp>
#include <keel/core/outcome.hpp>
#include <keel/step/device_update.hpp>
#include <keel/step/gradients.hpp>
#include <keel/step/observer.hpp>
#include <keel/step/shown_gradients.hpp>
#include <keel/step/update_decision.hpp>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace keel::detail::inline KEEL_MODE {

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
  /// scalar there. `of_ranks`: what it came to on each, where there are several.
  void decide(update_decision& found, gradients<stage::scaled> whole, at::Tensor const& loss, at::Tensor const& of_ranks = {}) {
    auto unscaled = std::move(whole).unscale();
    step_.replication_.inside_with_gradients([&] { step_.engine_->prepare(); });
    step_.replication_.prepare_update();
    found.limits = {step_.guards_.spike().loss_limit(), step_.guards_.spike().gradient_norm_limit(),
                    norm_limit<typename Step::clip_policy>(step_.clip_state_, step_.present_value().clip)};
    if (double const most = step_.squarable_norm(); found.limits.clip > most) found.limits.squarable = most;
    std::vector<at::Tensor> also;
    if (of_ranks.defined()) also.push_back(of_ranks);
    if (found.facts.parts.names() != 0) also.push_back(found.facts.parts.means_on_device());
    device_decision const& decided = found.decided.emplace(
        decide_on_device(std::move(unscaled), loss, found.limits, step_.pass_.buffers().is_any_spoiled(loss.device()), also));
    if (reads_gradients(step_.observe_)) show_gradients(decided);
    auto& layers = step_.pass_.layers();
    if (layers.is_on()) layers.gradients(decided.unscaling);
  }

  /// Launches the update and says what became of the one before it.
  step_outcome finish(update_decision found) {
    if (found.decided) {
      launch(found);
    } else {
      step_.pass_.skip();
    }
    found.facts.memory = step_.pass_.memory().end();
    step_.pass_.phases().stop();
    found.facts.times = step_.pass_.phases().take();
    step_.pending_.emplace(
        pending_update{found.facts, found.limits, {}, found.skip_reason.value_or(reason::nonfinite_loss), found.where});
    if (found.decided) step_.pending_->verdict.emplace(std::move(found.decided->verdict));
    step_.half_updated_ = false;
    step_.end_update();
    step_.replication_.abort_peers_on_exception([&] { step_.replication_.look_at_replicas(); });
    return std::exchange(step_.settled_, std::nullopt).value_or(result::pending{});
  }

  /// The device's verdict is the host's. Throws world_error (E25) where it does not come because another rank is gone.
  step_outcome close(pending_update update) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    if (!update.verdict) return step_.skip(update.facts, update.skip_reason, update.where, nan, nan);
    if constexpr (Step::replicates) require_end(*update.verdict);
    auto const [loss, norm, applied, spoiled, also] = update.verdict->read();
    std::size_t const ranks = step_.replication_.is_shared() ? static_cast<std::size_t>(step_.replication_.world().size()) : 0;
    update.facts.parts.put_means(std::span(also).subspan(ranks));
    if (applied) return step_.accept(update.facts, loss, norm, norm > update.limits.clip);
    step_.replication_.inside([&] { step_.engine_->take_back(); });
    reason why = skip_reason_of(loss, norm, update.limits, Step::bad_gradient);
    if (spoiled && std::isfinite(loss) && std::isfinite(norm)) why = reason::nonfinite_buffer;
    std::string where;
    if (why == reason::nonfinite_gradient && std::isfinite(norm) && norm > update.limits.squarable) {
      update.facts.origin = squarable_words(norm);
    } else if (why == reason::nonfinite_loss) {
      where = update.facts.parts.first_nonfinite(Step::read);
      name_rank(update.facts, where, std::span(also).first(ranks));
    } else if (auto const found = why == Step::bad_gradient ? update.verdict->first_nonfinite() : std::nullopt) {
      where = step_.parameters_.names[*found];
    }
    return step_.skip(update.facts, why, where, loss, norm);
  }

 private:
  void launch(update_decision& found) {
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
  }

  /// The device adds up with those of other ranks, and waits for one that is gone longer than its host does.
  void require_end(device_result const& verdict) const {
    auto const& world = step_.replication_.world();
    // Ranks of one process have no limit.
    bool const is_limited = world.size() > 1 && world.timeout() > std::chrono::milliseconds(0);
    if (!is_limited || verdict.wait_for(world.timeout())) return;
    std::string const words =
        "rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) + ": the device has not ended update " +
        std::to_string(step_.updates_ + 1) + " for " + std::to_string(world.timeout().count() / 1000) +
        " s, in which it adds up with the devices of other ranks: one of them is gone or hanging. Look at "
        "what the others said last, and start all of them again.";
    world.abort(words);
    throw world_error("E25", words);
  }

  /// The first rank whose loss is not finite, where this rank's own has no name that says more.
  void name_rank(update_facts& facts, std::string& where, std::span<double const> losses) const {
    auto const bad = std::find_if(losses.begin(), losses.end(), [](double one) { return !std::isfinite(one); });
    if (bad == losses.end()) return;
    // Only there is anything to be found.
    bool const is_other = std::isfinite(losses[static_cast<std::size_t>(step_.replication_.world().rank())]);
    std::string const which = "rank " + std::to_string(bad - losses.begin());
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

}  // namespace keel::detail::inline KEEL_MODE
