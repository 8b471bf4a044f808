// The mechanism of checkpoint::keep_best: which of the saves are the best, and were they ever durable.
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

  /// An update was applied with this loss.
  void updated(double loss) {
    if (settings_.metric != checkpoint::metric::training_loss) return;
    sum_ += loss;
    ++count_;
  }
  /// True if a save now would be of the best evaluation so far, and the policy wants it at once.
  bool evaluated(agreed<double> const& value, std::int64_t update) {
    evaluation_ = value.value();
    evaluated_at_ = update;
    if (!settings_.on_best) return false;
    best_so_far would = best_;
    return would.offer(as_finite(value), update);
  }

  /// A save that is due begins: is it one of the best? A requested one is not judged, so that the verdicts of a run do not
  /// depend on it.
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
  /// The updates of those that stay beside the newest, the best first.
  std::vector<std::int64_t> keeps() const {
    std::vector<std::int64_t> updates;
    if (!settings_.best) return updates;
    for (auto const& one : best_.entries()) updates.push_back(one.update);
    return updates;
  }
  /// The best, if there is one.
  std::optional<best_so_far::entry> first() const {
    return settings_.best && best_.has_one() ? std::optional(best_.entries().front()) : std::nullopt;
  }
  /// Forgets those that are not among `there`, in rising order, and returns them.
  std::vector<std::int64_t> retain_only(std::vector<std::int64_t> const& there) {
    auto const lost =
        best_.forget([&](std::int64_t update) { return !std::binary_search(there.begin(), there.end(), update); });
    return settings_.best ? lost : std::vector<std::int64_t>();
  }
  /// The save of this update came to nothing: if it was judged, the best are those from before it.
  void revert(std::int64_t update) {
    if (judged_at_ != update) return;
    judged_at_ = -1;
    best_ = before_;
  }

  /// It is durable.
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
  /// One update has one place.
  void offer(agreed<double> const& value, std::int64_t update) {
    best_.forget([&](std::int64_t one) { return one == update; });
    best_.offer(as_finite(value), update);
  }

  checkpoint::settings settings_;
  better order_;
  best_so_far best_;
  best_so_far before_;
  double sum_ = 0.0;  ///< of the losses since the last save
  std::int64_t count_ = 0;
  double evaluation_ = 0.0;
  std::int64_t evaluated_at_ = -1;
  std::int64_t judged_at_ = -1;
};

}  // namespace keel::inline KEEL_MODE
