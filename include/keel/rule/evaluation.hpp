// E: evaluation.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>
#include <limits>

namespace keel::rule {

/// Also checked by trainer::evaluate_on, which knows whether the data ends.
struct E28 {
  KEEL_RULE_TEXT("E28", "Lightning (warns)",
                 "this evaluation never runs or never ends. Fix: an interval from 1 to the run's length, options from 0 on and "
                 "finite, batches<N> if its data is endless.");
  static constexpr bool broken(config const& c) {
    auto const& e = c.evaluation;
    if (e.kind == evaluation::kind::none) return false;
    constexpr double largest = std::numeric_limits<double>::max();
    // A schedule that ends at zero has the run's length (L14). The evaluations of a part are those of its run.
    bool const ends_with_schedule =
        schedule::falls_to_its_end(c.schedule.kind) && c.schedule.min_ratio == 0.0 && c.schedule.min_lr == 0.0;
    long long const length = c.run.is_part ? 0 : c.run.updates > 0 ? c.run.updates : ends_with_schedule ? c.schedule.total : 0;
    bool const never = (e.kind == evaluation::kind::every && length > 0 && e.interval > length) ||
                       (e.kind == evaluation::kind::every_epochs && c.data.endless);
    return never || e.interval < 1 || e.batches < 0 || e.early_stop < 0 || e.not_before < 0 ||
           !(e.min_delta >= 0.0 && e.min_delta <= largest) ||
           (e.has_stop_at && !(e.stop_at >= -largest && e.stop_at <= largest));
  }
};

struct E29 {
  KEEL_RULE_TEXT("E29", "LibTorch, PyTorch",
                 "ranks that judge their own loss keep different checkpoints. Fix: offer what "
                 "keel::as_finite(keel::agree(world, loss)) returns.");
  static constexpr auto decided = rule::decided::call;
};

struct E30 {
  KEEL_RULE_TEXT(
      "E30", "LibTorch, PyTorch, Lightning (first k)",
      "a NaN may pass for the best value so far. Fix: offer what keel::as_finite(keel::agree(world, loss)) returns.");
  static constexpr auto decided = rule::decided::call;
};

struct E20 {
  KEEL_RULE_TEXT("E20", "",
                 "this evaluation is of a moving average that the recipe does not keep. Fix: add keel::ema<0.999>, or remove "
                 "keel::evaluation::averaged.");
  static constexpr bool broken(config const& c) {
    bool const is_one_of_several = c.run.is_part || c.run.has_parts;
    return c.evaluation.kind != evaluation::kind::none && c.evaluation.averaged && !c.ema.kept && !is_one_of_several;
  }
};

struct E21 {
  KEEL_RULE_TEXT("E21", "",
                 "min_delta, not_before, monitor and larger_is_better judge nothing here. Fix: remove them, or "
                 "keel::evaluation::early_stop<5>, with saves at evaluations.");
  static constexpr bool broken(config const& c) {
    auto const& e = c.evaluation;
    if (e.kind == evaluation::kind::none) return false;
    bool const judges = e.early_stop != 0 || e.has_stop_at || e.stop_on_nonfinite || schedule::judges_evaluations(c.schedule) ||
                        (c.checkpoint.best && c.checkpoint.metric == checkpoint::metric::evaluation_loss);
    return ((e.min_delta != 0.0 || e.not_before != 0) && e.early_stop == 0) || ((!e.monitor.empty() || e.larger) && !judges);
  }
};

using evaluation_rules = list<E28, E20, E21>;
using evaluation_order_rules = list<E29, E30>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
