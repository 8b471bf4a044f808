// M: the moving average of the parameters.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct M03 {
  KEEL_RULE_TEXT(
      "M03", "LibTorch, PyTorch, Composer",
      "updating the average on a skipped step counts the same weights twice. Fix: pass the step's outcome to update().");
  static constexpr auto decided = rule::decided::call;
};

struct M04 {
  KEEL_RULE_TEXT("M04", "LibTorch, PyTorch",
                 "the average is already in the model; another swap or update would lose the parameters. Fix: let the value of "
                 "swap_in() go out of scope first.");
  static constexpr auto decided = rule::decided::running;
};

struct M10 {
  KEEL_RULE_TEXT("M10", "",
                 "the decay of a moving average must lie between 0 and 1. Fix: keel::ema<0.999>, or keel::no_ema "
                 "and no averaged evaluation.");
  static constexpr bool broken(config const& c) {
    return c.ema.kept ? !(c.ema.decay > 0.0 && c.ema.decay < 1.0) : c.ema.decay != 0.0;
  }
};

using ema_rules = list<M10>;
using ema_order_rules = list<M03, M04>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
