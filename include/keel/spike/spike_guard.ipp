// Definitions for spike_guard.hpp.
#pragma once

#include <keel/spike/spike_guard.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::inline KEEL_MODE {

KEEL_BODY std::optional<reason> spike_guard::judge(double loss, double gradient_norm) const {
  if (settings_.kind == spike::kind::ignore) return std::nullopt;
  auto const finite_loss = as_finite(loss);
  auto const finite_norm = as_finite(gradient_norm);
  if (finite_loss && exceeds(*finite_loss, loss_limit())) return reason::loss_spike;
  if (finite_norm && exceeds(*finite_norm, gradient_norm_limit())) return reason::gradient_spike;
  return std::nullopt;
}

KEEL_BODY void spike_guard::accepted(step_outcome const& result) {
  if (settings_.kind == spike::kind::ignore) return;
  auto const& updated = result.get<result::updated>();
  loss_.push(keel::accepted(result, updated.loss));
  gradient_norm_.push(keel::accepted(result, updated.gradient_norm));
  consecutive_ = 0;
}

KEEL_BODY std::optional<std::string> spike_guard::skipped(reason why, double value, std::int64_t update) {
  if (++consecutive_ < settings_.limit) return std::nullopt;
  double const bound = why == reason::loss_spike ? loss_limit() : gradient_norm_limit();
  std::string what = std::string(to_string(why)) + " at update " + std::to_string(update) + ", " + std::to_string(value) +
                     " above " + std::to_string(bound) + ": " + std::to_string(consecutive_) + " in a row";
  if (settings_.kind == spike::kind::rollback) return what;
  throw diverged_error("E14",
                       what +
                           ", which is this recipe's limit. The parameters are those of the last good "
                           "update. Lower the learning rate, or look at the data from here on.",
                       why);
}

KEEL_BODY double spike_guard::limit(window_statistics const& history, double above) const {
  double lowest = std::numeric_limits<double>::infinity();
  if (settings_.kind == spike::kind::ignore) return lowest;
  if (above > 0.0) lowest = above;
  lowest = std::min(lowest, history.limit(settings_.zscore));
  auto const mean = settings_.ratio > 0.0 ? history.mean() : std::nullopt;
  return mean && *mean > 0.0 ? std::min(lowest, settings_.ratio * *mean) : lowest;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
