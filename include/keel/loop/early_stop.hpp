// The mechanism of evaluation::early_stop and its like: when an evaluation ends the run, and why.
#pragma once

#include <cmath>
#include <cstdint>
#include <keel/checkpoint/best.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/policy/evaluation.hpp>
#include <keel/step/finite.hpp>
#include <string>

namespace keel {

class early_stop {
 public:
  explicit early_stop(evaluation::settings const& settings)
      : settings_(settings), best_({settings.larger, settings.min_delta}) {}

  /// One more evaluation; what is not finite is not better. True if it ends the run.
  bool evaluated(agreed<double> const& value, std::int64_t update) {
    bool const better = best_.offer(as_finite(value), update);
    without_ = better ? 0 : without_ + 1;
    enough_updates_ = update >= settings_.not_before;
    nonfinite_ = settings_.stop_on_nonfinite && !std::isfinite(value.value());
    reached_ = settings_.has_stop_at && std::isfinite(value.value()) &&
               (settings_.larger ? value.value() >= settings_.stop_at : value.value() <= settings_.stop_at);
    return is_over();
  }
  /// It did, in this process or before a resume.
  bool is_over() const { return nonfinite_ || reached_ || has_stalled(); }
  std::string why() const {
    if (nonfinite_) return "an evaluation is not finite";
    if (reached_) return "an evaluation reached what stop_at asks for";
    return std::to_string(without_) + " evaluations in a row without a better value";
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("best", best_);
    archive("without", without_);
    archive.added("enough_updates", enough_updates_);
    archive.added("nonfinite", nonfinite_);
    archive.added("reached", reached_);
  }

 private:
  bool has_stalled() const { return settings_.early_stop > 0 && without_ >= settings_.early_stop && enough_updates_; }

  evaluation::settings settings_;
  best_so_far best_;
  std::int64_t without_ = 0;
  bool enough_updates_ = true;
  bool nonfinite_ = false;
  bool reached_ = false;
};

}  // namespace keel
