// L: the learning-rate schedule.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>
#include <limits>

namespace keel::rule {

/// Returns the number of updates that the schedule covers; 0: unknown.
constexpr long long schedule_total(config const& c) { return c.schedule.total > 0 ? c.schedule.total : c.run.updates; }

/// Returns the number of updates until the run ends, as a policy counts them. 0: unknown, as for a part of a run, which may make several
/// per iteration.
constexpr long long updates_until_the_end(config const& c) { return c.run.is_part ? 0 : c.run.updates; }
/// True for an interval that ends only after the run.
constexpr bool ends_after_run(config const& c, long long interval) {
  long long const length = updates_until_the_end(c);
  return length > 0 && interval >= length;
}

struct L01 {
  KEEL_RULE_TEXT(
      "L01", "Transformers",
      "warm-up is given both in updates and as a ratio. Fix: keep keel::schedule::warmup or keel::schedule::warmup_ratio.");
  static constexpr bool broken(config const& c) { return c.schedule.warmup != 0 && c.schedule.warmup_ratio != 0.0; }
};

struct L02 {
  KEEL_RULE_TEXT("L02", "Transformers, KempnerForge, torchtitan",
                 "warm-up and decay leave no update at the full rate. Fix: keel::schedule::warmup plus decay "
                 "shorter than the run and its total, and none below 0.");
  static constexpr bool broken(config const& c) {
    long long const total = schedule_total(c);
    bool const lasts = c.schedule.decay >= 0 && c.schedule.warmup >= 0 && c.schedule.total >= 0;
    double const warmup = schedule::warmup_of(c.schedule, total);
    auto const length = static_cast<double>(total);
    // Warm-up and decay may fill the whole run: the rate then falls directly from its peak.
    return !lasts || (total > 0 && (warmup >= length || warmup + static_cast<double>(c.schedule.decay) > length));
  }
};

struct L03 {
  KEEL_ROLLBACK_RULE_TEXT("L03", "LibTorch, PyTorch",
                          "a ratio or min_lr is out of range. Fix: min_ratio, start_ratio in [0, 1], warmup_ratio in [0, "
                          "1), min_lr in [0, rate].");
  static constexpr bool broken(config const& c) {
    auto const& s = c.schedule;
    bool const ratios = s.min_ratio >= 0.0 && s.min_ratio <= 1.0 && s.warmup_ratio >= 0.0 && s.warmup_ratio < 1.0 &&
                        s.start_ratio >= 0.0 && s.start_ratio <= 1.0;
    bool const rate = s.min_lr >= 0.0 && s.min_lr <= std::numeric_limits<double>::max() &&
                      // learning_rate_error E18 reports a negative rate.
                      !(c.run.known && c.run.learning_rate >= 0.0 && s.min_lr > c.run.learning_rate);
    return !ratios || !rate;
  }
};

struct L15 {
  KEEL_RULE_TEXT(
      "L15", "",
      "the minimum is given by both min_ratio and min_lr. Fix: keep keel::schedule::min_ratio or keel::schedule::min_lr.");
  static constexpr bool broken(config const& c) { return c.schedule.min_lr > 0.0 && c.schedule.min_ratio > 0.0; }
};

struct L04 {
  KEEL_RULE_TEXT("L04", "none known",
                 "this schedule needs the length of the run. Fix: keel::schedule::total<D>, "
                 "options.updates, or options.epochs with batches_per_epoch.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    return c.run.known && !c.run.is_length_pending && schedule::depends_on_length(c.schedule) && schedule_total(c) == 0;
  }
};

struct L11 {
  KEEL_RULE_TEXT("L11", "",
                 "only warmup_stable_decay has a decay; here it would be ignored. Fix: remove keel::schedule::decay, or use "
                 "warmup_stable_decay.");
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
                 "warmup_stable_decay without a decay never falls. Fix: keel::schedule::decay<D> that leaves "
                 "warmup room, or keel::schedule::constant_with warmup alone.");
  static constexpr bool broken(config const& c) {
    return c.schedule.kind == schedule::kind::warmup_stable_decay && c.schedule.decay == 0;
  }
};

struct L14 {
  KEEL_RULE_TEXT("L14", "",
                 "the run outlasts its schedule, which ends at zero. Fix: keel::schedule::min_ratio<0.1>, or a total equal to "
                 "the run's length.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    bool const ends_at_zero =
        schedule::falls_to_its_end(c.schedule.kind) && c.schedule.min_ratio == 0.0 && c.schedule.min_lr == 0.0;
    return c.run.known && ends_at_zero && c.schedule.total > 0 && c.run.updates > c.schedule.total;
  }
};

struct L16 {
  KEEL_RULE_TEXT("L16", "",
                 "start_ratio belongs to one_cycle, patience, evaluations and threshold to plateau, lowered_by to "
                 "falls by a factor. Fix: remove it.");
  static constexpr bool broken(config const& c) {
    using schedule::kind;
    auto const& s = c.schedule;
    bool const of_plateau = s.patience == 0 && s.evaluations == 0 && s.threshold == 0.0;
    bool const lowers =
        s.kind == kind::plateau || s.kind == kind::exponential || s.kind == kind::step_decay || s.kind == kind::multi_step;
    bool const taken = (s.start_ratio == 0.0 || s.kind == kind::one_cycle) && (of_plateau || s.kind == kind::plateau) &&
                       (s.lowered_by == 0.0 || lowers);
    return s.kind != kind::custom && !taken;
  }
};

struct L17 {
  KEEL_RULE_TEXT("L17", "",
                 "this plateau never lowers the rate. Fix: schedule::patience<D> within the run, or evaluations<3> "
                 "with evaluation::every; lowered_by<0.5>, threshold<0.01>.");
  static constexpr bool broken(config const& c) {
    auto const& s = c.schedule;
    bool const judged = (s.patience >= 1 && s.evaluations == 0) || (s.evaluations >= 1 && s.patience == 0);
    bool const lowers = s.lowered_by > 0.0 && s.lowered_by < 1.0 && s.threshold >= 0.0 && s.threshold < 1.0;
    bool const ends_first = ends_after_run(c, s.patience);
    return s.kind == schedule::kind::plateau && (!(judged && lowers) || ends_first);
  }
};

struct L18 {
  KEEL_RULE_TEXT("L18", "",
                 "interval is for step_decay or exponential, milestones multi_step, power polynomial, cycle "
                 "warm_restarts. Fix: remove it.");
  static constexpr bool broken(config const& c) {
    using schedule::kind;
    auto const& s = c.schedule;
    bool const has_cycle = s.cycle != 0 || s.cycle_factor != 0;
    bool const taken = (s.interval == 0 || s.kind == kind::step_decay || s.kind == kind::exponential) &&
                       (s.milestone_count == 0 || s.kind == kind::multi_step) &&
                       (s.power == 0.0 || s.kind == kind::polynomial) && (!has_cycle || s.kind == kind::warm_restarts);
    return s.kind != kind::custom && !taken;
  }
};

struct L19 {
  KEEL_RULE_TEXT("L19", "LibTorch, PyTorch",
                 "a fall needs a factor in (0, 1) and an interval. Fix: lowered_by<0.1>; in step_decay and "
                 "exponential also keel::schedule::interval<D> within the run.");
  static constexpr bool broken(config const& c) {
    using schedule::kind;
    auto const& s = c.schedule;
    bool const by_interval = s.kind == kind::step_decay || s.kind == kind::exponential;
    bool const lowers = s.lowered_by > 0.0 && s.lowered_by < 1.0;
    bool const ends_first = s.kind == kind::step_decay && ends_after_run(c, s.interval);
    return (by_interval && (!(lowers && s.interval >= 1) || ends_first)) || (s.kind == kind::multi_step && !lowers);
  }
};

struct L20 {
  KEEL_RULE_TEXT("L20", "PyTorch",
                 "milestones are 1 to 8 rising updates of the run, the first after the warm-up. Fix: "
                 "keel::schedule::milestones<A, B> above the warmup, below the end.");
  static constexpr bool broken(config const& c) {
    auto const& s = c.schedule;
    if (s.kind != schedule::kind::multi_step) return false;
    if (s.milestone_count < 1 || s.milestone_count > schedule::max_milestones) return true;
    bool rises = s.milestones[0] >= 1;
    for (int i = 1; i < s.milestone_count; ++i) rises = rises && s.milestones[i] > s.milestones[i - 1];
    bool const ends_first = ends_after_run(c, s.milestones[s.milestone_count - 1]);
    // L02 reports a negative warm-up.
    return !rises || ends_first || schedule::warmup_of(s, schedule_total(c)) >= static_cast<double>(s.milestones[0]);
  }
};

struct L21 {
  KEEL_RULE_TEXT("L21", "PyTorch",
                 "a polynomial needs its power, a finite number above zero. Fix: keel::schedule::power<2.0>, or "
                 "keel::schedule::linear.");
  static constexpr bool broken(config const& c) {
    return c.schedule.kind == schedule::kind::polynomial && !(c.schedule.power > 0.0 && c.schedule.power < 1.7e308);
  }
};

struct L22 {
  KEEL_RULE_TEXT("L22", "none known",
                 "inverse_root falls with the length of its warm-up, which is not set. Fix: "
                 "keel::schedule::warmup<D> shorter than the run, such as warmup<4000_steps>.");
  static constexpr bool broken(config const& c) {
    return c.schedule.kind == schedule::kind::inverse_root && c.schedule.warmup == 0 && c.schedule.warmup_ratio == 0.0;
  }
};

struct L23 {
  KEEL_RULE_TEXT("L23", "none known",
                 "warm restarts need the length of their first cycle, and no later one is shorter. Fix: "
                 "keel::schedule::cycle<1000_steps>, cycle_factor<2>.");
  static constexpr bool broken(config const& c) {
    auto const& s = c.schedule;
    return s.kind == schedule::kind::warm_restarts && !(s.cycle >= 1 && s.cycle_factor >= 1);
  }
};

/// May be accepted, because a program with its own loop evaluates outside of the recipe.
struct L24 {
  KEEL_RULE_TEXT("L24", "LibTorch, PyTorch",
                 "a plateau of evaluations never falls without any. Fix: keel::evaluation::every<500_steps>, "
                 "patience in place of evaluations, or keel::accept<\"L24\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) {
    return schedule::judges_evaluations(c.schedule) && c.evaluation.kind == evaluation::kind::none;
  }
};

struct L25 {
  KEEL_RULE_TEXT("L25", "",
                 "this schedule ignores its total. Fix: remove keel::schedule::total, or use "
                 "keel::schedule::cosine with warmup, total and minimum alone.");
  static constexpr bool broken(config const& c) {
    return c.schedule.total != 0 && c.schedule.kind != schedule::kind::custom && !schedule::depends_on_length(c.schedule);
  }
};

using schedule_rules = list<L01, L02, L03, L04, L11, L12, L13, L14, L15, L16, L17, L18, L19, L20, L21, L22, L23, L24, L25>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
