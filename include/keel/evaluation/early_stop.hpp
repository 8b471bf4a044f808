// The mechanism of evaluation::early_stop and the other stopping rules: decides when an evaluation ends the run, and why.
#pragma once

#include <cmath>
#include <cstdint>
#include <keel/checkpoint/best_so_far.hpp>
#include <keel/collective/agreed.hpp>
#include <keel/config/open_numbers.hpp>
#include <keel/core/finite.hpp>
#include <keel/policy/evaluation.hpp>
#include <string>

namespace keel::inline KEEL_MODE {

class early_stop {
 public:
  template <policy_for<slot::evaluation> Policy>
  explicit early_stop(Policy const&) : early_stop(detail::closed_settings<Policy>()) {}
  explicit early_stop(evaluation::settings const& settings)
      : settings_(settings), best_({settings.larger, settings.min_delta}) {}

  /// Adds an evaluation and returns true if it ends the run. A non-finite value never counts as an improvement.
  bool evaluated(agreed<double> const& value, std::int64_t update) {
    bool const better = best_.offer(as_finite(value), update);
    without_ = better ? 0 : without_ + 1;
    evaluations_ = true;
    update_ = update;
    finite_ = std::isfinite(value.value());
    last_ = finite_ ? value.value() : 0.0;
    return is_over();
  }
  /// Returns true if an evaluation has ended the run, in this process or before a resume.
  bool is_over() const { return is_nonfinite() || has_reached() || has_stalled(); }
  std::string why() const {
    if (is_nonfinite()) return "an evaluation is not finite";
    if (has_reached()) return "an evaluation reached what stop_at asks for";
    return std::to_string(without_) + " evaluations in a row without a better value";
  }

  template <class Archive>
  void visit(Archive& archive) {
    archive("best", best_);
    archive("without", without_);
    // Older checkpoints lack these fields.
    archive.optional_field("evaluations", evaluations_);
    archive.optional_field("update", update_);
    archive.optional_field("finite", finite_);
    archive.optional_field("last", last_);
  }

 private:
  // These use the present settings, so a program with a higher limit continues a run that an earlier one stopped.
  bool is_nonfinite() const { return evaluations_ && settings_.stop_on_nonfinite && !finite_; }
  bool has_reached() const {
    return evaluations_ && finite_ && settings_.has_stop_at &&
           (settings_.larger ? last_ >= settings_.stop_at : last_ <= settings_.stop_at);
  }
  bool has_stalled() const {
    bool const may = !evaluations_ || update_ >= settings_.not_before;
    return settings_.early_stop > 0 && without_ >= settings_.early_stop && may;
  }

  evaluation::settings settings_;
  best_so_far best_;
  std::int64_t without_ = 0;
  bool evaluations_ = false;  ///< there was an evaluation; the members below belong to the last one
  std::int64_t update_ = 0;
  bool finite_ = true;
  double last_ = 0.0;  ///< 0 if it is not finite
};

}  // namespace keel::inline KEEL_MODE
