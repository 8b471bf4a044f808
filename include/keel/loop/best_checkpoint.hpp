// The mechanism of checkpoint::keep_best: which of the saves is the best, and was it ever durable.
#pragma once

#include <cstdint>
#include <keel/checkpoint/best.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/policy/checkpoint.hpp>
#include <keel/step/finite.hpp>
#include <optional>
#include <utility>

namespace keel {

class best_checkpoint {
 public:
  explicit best_checkpoint(checkpoint::settings const& settings) : settings_(settings) {}

  /// An update was applied with this loss.
  void updated(double loss) {
    if (settings_.metric != checkpoint::metric::training_loss) return;
    sum_ += loss;
    ++count_;
  }
  /// True if a save now would be of the best evaluation so far, and the policy wants it at once.
  bool evaluated(agreed<double> const& loss, std::int64_t update) {
    evaluation_ = loss.value();
    evaluated_at_ = update;
    if (!settings_.on_best) return false;
    best_so_far would = best_;
    return would.offer(as_finite(loss), update);
  }

  /// A save that is due begins: is it the best? One that somebody asked for is not judged, so that the verdicts of a run do not
  /// depend on it.
  template <class World>
  void judge(World const& world, std::int64_t update) {
    before_ = best_;
    judged_at_ = update;
    if (settings_.metric == checkpoint::metric::evaluation_loss && evaluated_at_ == update)
      best_.offer(as_finite(agree(world, evaluation_)), update);
    if (settings_.metric == checkpoint::metric::training_loss && count_ > 0)
      best_.offer(as_finite(agree(world, sum_ / static_cast<double>(count_))), update);
    sum_ = 0.0;
    count_ = 0;
  }
  /// The update of the one that stays beside the newest.
  std::optional<std::int64_t> keeps() const {
    return settings_.best && best_.has_one() ? std::optional(best_.update()) : std::nullopt;
  }
  /// The save of this update came to nothing: if it was judged, the best is the one from before it.
  void take_back(std::int64_t update) {
    if (std::exchange(judged_at_, -1) == update) best_ = before_;
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
  checkpoint::settings settings_;
  best_so_far best_;
  best_so_far before_;
  double sum_ = 0.0;  ///< of the losses since the last save
  std::int64_t count_ = 0;
  double evaluation_ = 0.0;
  std::int64_t evaluated_at_ = -1;
  std::int64_t judged_at_ = -1;
};

}  // namespace keel
