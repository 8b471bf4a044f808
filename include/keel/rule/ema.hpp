// M: the moving average of the parameters.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct M10 {
  KEEL_RULE_TEXT("M10", "the decay of a moving average lies above 0 and below 1. Fix: keel::ema<0.999>, or keel::no_ema.");
  static constexpr bool broken(config const& c) { return !(c.ema.decay >= 0.0 && c.ema.decay < 1.0); }
};

using ema_rules = list<M10>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
