// Implements checkpoint::keep_best: tracks which saves are the best, and reverts those that failed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <keel/checkpoint/best_so_far.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/core/finite.hpp>
#include <keel/policy/checkpoint.hpp>
#include <keel/policy/evaluation.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace keel::inline KEEL_MODE {

class best_checkpoint {
 public:
  best_checkpoint(checkpoint::settings const& settings, evaluation::settings const& evaluation)
      : settings_(settings),
        order_{settings.metric == checkpoint::metric::evaluation_loss && evaluation.larger},
        best_(order_, std::max(settings.best_count, 1ll)),
        before_(best_) {}

  /// Call after each applied update, with its loss.
  void updated(double loss) {
    if (settings_.metric != checkpoint::metric::training_loss) return;
    sum_ += loss;
    ++count_;
  }
  /// Call after each evaluation. Returns true if it is the best so far and the policy saves new bests immediately.
  bool evaluated(agreed<double> const& value, std::int64_t update) {
    evaluation_ = value.value();
    evaluated_at_ = update;
    if (!settings_.on_best) return false;
    best_so_far would = best_;
    return would.offer(as_finite(value), update);
  }

  /// Call at the start of a scheduled save: ranks it among the best. Requested saves are not ranked, so that they do not affect
  /// which checkpoints are kept.
  template <class World>
  void judge(World const& world, std::int64_t update) {
    before_ = best_;
    judged_at_ = update;
    if (settings_.metric == checkpoint::metric::evaluation_loss && evaluated_at_ == update) {
      offer(agree(world, evaluation_), update);
    }
    if (settings_.metric == checkpoint::metric::training_loss && count_ > 0)
      offer(agree(world, sum_ / static_cast<double>(count_)), update);
    sum_ = 0.0;
    count_ = 0;
  }
  /// Returns the updates of the checkpoints to keep in addition to the newest, best first.
  std::vector<std::int64_t> keeps() const {
    std::vector<std::int64_t> updates;
    if (!settings_.best) return updates;
    for (auto const& one : best_.entries()) updates.push_back(one.update);
    return updates;
  }
  /// Returns the best one; nullopt if there is none.
  std::optional<best_so_far::entry> first() const {
    return settings_.best && best_.has_one() ? std::optional(best_.entries().front()) : std::nullopt;
  }
  /// Removes all entries that are not in `there`, which is sorted in ascending order, and returns their updates.
  std::vector<std::int64_t> retain_only(std::vector<std::int64_t> const& there) {
    auto const lost =
        best_.forget([&](std::int64_t update) { return !std::binary_search(there.begin(), there.end(), update); });
    return settings_.best ? lost : std::vector<std::int64_t>();
  }
  /// Call if the save of this update failed: restores the ranking from before it.
  void revert(std::int64_t update) {
    if (judged_at_ != update) return;
    judged_at_ = -1;
    best_ = before_;
  }

  /// Call when the save of this update is durable: revert() can no longer undo it.
  void settled(std::int64_t update) {
    if (judged_at_ == update) judged_at_ = -1;
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("best", best_);
    archive("sum", sum_);
    archive("count", count_);
    archive("evaluation", evaluation_);
    archive("evaluated_at", evaluated_at_);
  }

 private:
  /// Replaces an earlier entry of the same update.
  void offer(agreed<double> const& value, std::int64_t update) {
    best_.forget([&](std::int64_t one) { return one == update; });
    best_.offer(as_finite(value), update);
  }

  checkpoint::settings settings_;
  better order_;
  best_so_far best_;
  best_so_far before_;
  double sum_ = 0.0;  ///< sum of the losses since the last save
  std::int64_t count_ = 0;
  double evaluation_ = 0.0;
  std::int64_t evaluated_at_ = -1;
  std::int64_t judged_at_ = -1;
};

}  // namespace keel::inline KEEL_MODE
