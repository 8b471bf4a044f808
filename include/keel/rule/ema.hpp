// M: the moving average of the parameters, and quantised bases with adapters.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct M02 {
  KEEL_RULE_TEXT("M02", "LibTorch, PyTorch",
                 "under ZeRO-3 no rank has whole parameters to average. Fix: keel::shard::zero<2>, or keel::no_ema.");
  static constexpr bool broken(config const& c) { return c.ema.decay != 0.0 && c.shard.stage == 3; }
};

struct M03 {
  KEEL_RULE_TEXT("M03", "LibTorch, PyTorch, Composer",
                 "an average that is updated on a skipped step counts the same weights twice. Fix: pass the step's outcome to "
                 "update().");
  static constexpr auto decided = rule::decided::call;
};

struct M04 {
  KEEL_RULE_TEXT("M04", "LibTorch, PyTorch",
                 "the average is in the model; a second swap or an update would lose the parameters. Fix: end the scope of the "
                 "first swap_in()'s value.");
  static constexpr auto decided = rule::decided::running;
};

struct M06 {
  KEEL_RULE_TEXT("M06", "none known",
                 "a quantised base cannot be trained without adapters. Fix: keel::model::has<keel::model::adapters>, or no "
                 "quantize_base rung.");
  static constexpr bool broken(config const& c) {
    for (int i = 0; i < c.oom.count; ++i) {
      if (c.oom.rungs[i].kind == oom::rung_kind::quantize_base && !c.model.adapters) return true;
    }
    return false;
  }
};

struct M10 {
  KEEL_RULE_TEXT("M10", "", "the decay of a moving average lies above 0 and below 1. Fix: keel::ema<0.999>, or keel::no_ema.");
  static constexpr bool broken(config const& c) { return !(c.ema.decay >= 0.0 && c.ema.decay < 1.0); }
};

using ema_rules = list<M02, M06, M10>;
using ema_order_rules = list<M03, M04>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
