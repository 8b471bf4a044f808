// L: the learning-rate schedule.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

/// Updates that the schedule spreads over; 0: not known.
constexpr long long schedule_total(config const& c) { return c.schedule.total > 0 ? c.schedule.total : c.run.updates; }

struct L01 {
  KEEL_RULE_TEXT("L01", "Transformers",
                 "warm-up in updates and as a ratio are two sources for one number. Fix: keep keel::schedule::warmup or "
                 "keel::schedule::warmup_ratio.");
  static constexpr bool broken(config const& c) { return c.schedule.warmup != 0 && c.schedule.warmup_ratio != 0.0; }
};

struct L02 {
  KEEL_RULE_TEXT("L02", "Transformers, KempnerForge, torchtitan",
                 "warm-up and decay leave no update at the full learning rate. Fix: make warmup plus decay shorter than "
                 "keel::schedule::total<N_steps>.");
  static constexpr bool broken(config const& c) {
    long long const total = schedule_total(c);
    bool const lasts = c.schedule.decay >= 0 && c.schedule.warmup >= 0 && c.schedule.total >= 0;
    double const warmup = schedule::warmup_of(c.schedule, total);
    return !lasts || (total > 0 && warmup + static_cast<double>(c.schedule.decay) >= static_cast<double>(total));
  }
};

struct L03 {
  KEEL_ROLLBACK_RULE_TEXT("L03", "LibTorch, PyTorch",
                          "a schedule must end below its peak: ratios from 0 to 1, min_lr from 0 to lr. Fix: "
                          "min_ratio<0.1>, or a smaller min_lr.");
  static constexpr bool broken(config const& c) {
    auto const& s = c.schedule;
    bool const ratios = s.min_ratio >= 0.0 && s.min_ratio <= 1.0 && s.warmup_ratio >= 0.0 && s.warmup_ratio < 1.0 &&
                        s.start_ratio >= 0.0 && s.start_ratio <= 1.0;
    bool const rate = s.min_lr >= 0.0 && !(c.run.known && s.min_lr > c.run.learning_rate);
    return !ratios || !rate;
  }
};

struct L15 {
  KEEL_RULE_TEXT(
      "L15", "",
      "min_ratio and min_lr are two sources for one number. Fix: keep keel::schedule::min_ratio or keel::schedule::min_lr.");
  static constexpr bool broken(config const& c) { return c.schedule.min_lr > 0.0 && c.schedule.min_ratio > 0.0; }
};

struct L04 {
  KEEL_RULE_TEXT("L04", "none known",
                 "this schedule depends on the length of the run, which nothing says. Fix: keel::schedule::total<N_steps>, or "
                 "options.updates.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    return c.run.known && schedule::depends_on_length(c.schedule) && schedule_total(c) == 0;
  }
};

struct L11 {
  KEEL_RULE_TEXT("L11", "",
                 "only warmup_stable_decay has a decay of its own; elsewhere it would be ignored. Fix: remove "
                 "keel::schedule::decay, or use warmup_stable_decay.");
  static constexpr bool broken(config const& c) {
    return c.schedule.decay != 0 && c.schedule.kind != schedule::kind::warmup_stable_decay &&
           c.schedule.kind != schedule::kind::custom;
  }
};

struct L12 {
  KEEL_RULE_TEXT("L12", "",
                 "a constant schedule never falls, so its minimum would be ignored. Fix: remove min_ratio and min_lr, or use "
                 "keel::schedule::cosine.");
  static constexpr bool broken(config const& c) {
    return c.schedule.kind == schedule::kind::constant && (c.schedule.min_ratio != 0.0 || c.schedule.min_lr != 0.0);
  }
};

struct L13 {
  KEEL_RULE_TEXT("L13", "",
                 "warmup_stable_decay without a decay never falls. Fix: keel::schedule::decay<200_steps>, or "
                 "keel::schedule::constant_with.");
  static constexpr bool broken(config const& c) {
    return c.schedule.kind == schedule::kind::warmup_stable_decay && c.schedule.decay == 0;
  }
};

struct L14 {
  KEEL_RULE_TEXT("L14", "",
                 "the run is longer than its schedule, which ends at zero. Fix: keel::schedule::min_ratio<0.1>, or a total of "
                 "the run's length.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    bool const ends_at_zero =
        schedule::falls_to_its_end(c.schedule.kind) && c.schedule.min_ratio == 0.0 && c.schedule.min_lr == 0.0;
    return c.run.known && ends_at_zero && c.schedule.total > 0 && c.run.updates > c.schedule.total;
  }
};

struct L16 {
  KEEL_RULE_TEXT(
      "L16", "",
      "only one_cycle has a start_ratio; only plateau has patience, lowered_by, threshold. Fix: remove the option, or "
      "use that schedule.");
  static constexpr bool broken(config const& c) {
    auto const& s = c.schedule;
    bool const cycle = s.start_ratio == 0.0 || s.kind == schedule::kind::one_cycle;
    bool const plateau = (s.patience == 0 && s.lowered_by == 0.0 && s.threshold == 0.0) || s.kind == schedule::kind::plateau;
    return s.kind != schedule::kind::custom && !(cycle && plateau);
  }
};

struct L17 {
  KEEL_RULE_TEXT("L17", "",
                 "a plateau is judged over updates and lowers the rate. Fix: keel::schedule::patience<1000_steps>, lowered_by "
                 "between 0 and 1, threshold from 0 to 1.");
  static constexpr bool broken(config const& c) {
    auto const& s = c.schedule;
    bool const lowers = s.lowered_by > 0.0 && s.lowered_by < 1.0 && s.threshold >= 0.0 && s.threshold < 1.0;
    return s.kind == schedule::kind::plateau && !(s.patience >= 1 && lowers);
  }
};

using schedule_rules = list<L01, L02, L03, L04, L11, L12, L13, L14, L15, L16, L17>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
