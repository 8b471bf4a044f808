// Definitions for lr_schedule.hpp.
#pragma once

#include <keel/schedule/lr_schedule.hpp>

#include <keel/libtorch/detail/body_begin.inc>

namespace keel::detail::inline KEEL_MODE {

KEEL_BODY double cycle_progress(schedule::settings const& s, std::int64_t update) {
  std::int64_t length = std::max<std::int64_t>(1, s.cycle);
  std::int64_t const factor = std::max<std::int64_t>(1, s.cycle_factor);
  if (factor == 1) return static_cast<double>(update % length) / static_cast<double>(length);
  while (update >= length) {
    update -= length;
    // No run reaches the end of a longer cycle.
    if (length > std::numeric_limits<std::int64_t>::max() / factor) return 0.0;
    length *= factor;
  }
  return static_cast<double>(update) / static_cast<double>(length);
}

KEEL_BODY double times_lowered(schedule::settings const& s, std::int64_t update, std::int64_t after_warmup) {
  std::int64_t const interval = std::max<std::int64_t>(1, s.interval);
  switch (s.kind) {
    case schedule::kind::exponential:
      return static_cast<double>(after_warmup) / static_cast<double>(interval);
    case schedule::kind::step_decay: {
      std::int64_t const whole = after_warmup / interval;
      return static_cast<double>(whole);
    }
    case schedule::kind::multi_step: {
      auto const* const end = s.milestones + std::clamp(s.milestone_count, 0, schedule::max_milestones);
      return static_cast<double>(std::upper_bound(s.milestones, end, update) - s.milestones);
    }
    default:
      return 0.0;
  }
}

}  // namespace keel::detail::inline KEEL_MODE

namespace keel::inline KEEL_MODE {

KEEL_BODY double schedule_factor(schedule::settings const& s, std::int64_t update, std::int64_t total, double min) {
  double const at = static_cast<double>(update);
  double const length = static_cast<double>(total);
  double const warmup = static_cast<double>(schedule::warmup_updates(s, total));
  auto const half_cosine = [](double progress) { return 0.5 * (1.0 - std::cos(std::numbers::pi * progress)); };
  if (s.kind == schedule::kind::one_cycle) {
    // The last rising update has the highest rate, and the run's last update the lowest.
    double const peak = std::max(0.0, warmup - 1.0);
    if (at < peak) return s.start_ratio + (1.0 - s.start_ratio) * half_cosine(at / peak);
    double const fall = length - 1.0 - peak;
    return 1.0 - (1.0 - min) * half_cosine(fall > 0.0 ? std::min(1.0, (at - peak) / fall) : 1.0);
  }
  if (at < warmup) return (at + 1.0) / warmup;
  std::int64_t const after_warmup = update - static_cast<std::int64_t>(warmup);
  switch (s.kind) {
    case schedule::kind::inverse_root:
      // Updates count from 1 here, so that the last update of the warm-up is also the first of the fall.
      return std::max(min, std::sqrt(std::max(1.0, warmup) / (at + 1.0)));
    case schedule::kind::exponential:
    case schedule::kind::step_decay:
    case schedule::kind::multi_step:
      return std::max(min, std::pow(s.lowered_by, detail::times_lowered(s, update, after_warmup)));
    case schedule::kind::warm_restarts:
      return 1.0 - (1.0 - min) * half_cosine(detail::cycle_progress(s, after_warmup));
    default:
      break;
  }
  if (!schedule::falls_to_its_end(s.kind)) return 1.0;
  double const decay = s.kind == schedule::kind::warmup_stable_decay ? static_cast<double>(s.decay) : length - warmup;
  double const progress = decay > 0.0 ? std::clamp((at - (length - decay)) / decay, 0.0, 1.0) : (at < length ? 0.0 : 1.0);
  if (s.kind == schedule::kind::cosine) return 1.0 - (1.0 - min) * half_cosine(progress);
  if (s.kind == schedule::kind::polynomial) return min + (1.0 - min) * std::pow(1.0 - progress, s.power);
  return 1.0 - (1.0 - min) * progress;
}

KEEL_BODY double lr_schedule::rate(std::size_t group) const {
  if (!writes()) return present(group);
  double const highest = highest_.at(group) * lowered_;
  if (highest == 0.0) return 0.0;
  if (custom_) return highest * custom_(position_, total_);
  double const min = settings_.min_lr > 0.0 ? std::min(1.0, settings_.min_lr / highest) : settings_.min_ratio;
  double const factor = schedule_factor(settings_, position_, total_, min);
  return settings_.kind == schedule::kind::plateau ? highest * factor * std::max(min, plateau_.factor) : highest * factor;
}

KEEL_BODY void lr_schedule::require_sound(std::int64_t update) {
  if (loaded_) adopt_loaded_rates();
  if (!applied_) take_base_rates();
  for (std::size_t group = 0; group < highest_.size(); ++group) {
    if (writes() && present(group) != written_[group]) {
      throw learning_rate_error(
          "E18", "the learning rate of group " + std::to_string(group) + " is " + text_of(present(group)) + " before update " +
                     std::to_string(update) + " and the schedule wrote " + text_of(written_[group]) +
                     ": something else changes it too. Leave it to the recipe's schedule, or remove that policy and "
                     "change the rate yourself.");
    }
    double const next = rate(group);
    if (std::isfinite(next) && next >= 0.0) continue;
    throw learning_rate_error(
        "E18", "the learning rate of group " + std::to_string(group) + " for update " + std::to_string(update) + " is " +
                   text_of(next) + ". The parameters are as they were before it. Look at " +
                   (custom_ ? "the schedule's factor()" : "what sets the rate") + ": it must be finite and not negative.");
  }
}

KEEL_BODY void lr_schedule::apply(torch::optim::Optimizer& optimizer) {
  applied_ = true;
  if (!writes()) return;
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size() && i < highest_.size(); ++i) {
    written_[i] = rate(i);
    groups[i].options().set_lr(written_[i]);
  }
}

KEEL_BODY void lr_schedule::adopt_loaded_rates() {
  loaded_ = false;
  applied_ = true;
  for (std::size_t i = 0; i < written_.size(); ++i) written_[i] = present(i);
}

KEEL_BODY void lr_schedule::lower(double factor) {
  lowered_ *= factor;
  if (writes()) return;
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(group.options().get_lr() * factor);
}

KEEL_BODY void lr_schedule::advance(step_outcome const& result) {
  auto const* const updated = result.get_if<result::updated>();
  if (updated == nullptr) return;
  ++position_;
  bool const warm = position_ > schedule::warmup_updates(settings_, total_);
  bool const judges_losses = settings_.kind == schedule::kind::plateau && !schedule::judges_evaluations(settings_);
  if (judges_losses && warm) plateau_.take(settings_, updated->loss);
}

KEEL_BODY std::string lr_schedule::text_of(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", rate);
  return text;
}

KEEL_BODY lr_schedule::lr_schedule(torch::optim::Optimizer& optimizer, schedule::settings const& settings,
                                   std::int64_t run_length, std::function<double(std::int64_t, std::int64_t)> factor)
    : optimizer_(&optimizer),
      settings_(settings),
      total_(settings.total > 0 ? settings.total : std::max<std::int64_t>(run_length, 0)),
      custom_(std::move(factor)) {
  for (auto& group : optimizer.param_groups()) highest_.push_back(group.options().get_lr());
  written_ = highest_;
}

}  // namespace keel::inline KEEL_MODE

#include <keel/libtorch/detail/body_end.inc>
