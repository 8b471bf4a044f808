// G: clipping and the order of the phases of a step.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct G01 {
  KEEL_RULE_TEXT(
      "G01",
      "clipping gradients that are still scaled clips scale times too hard. Fix: call unscale(), then check(), then clip().");
};

struct G02 {
  KEEL_RULE_TEXT("G02",
                 "clipping a part of the sum is not clipping the sum. Fix: call complete() after the last micro-batch, then "
                 "unscale(), check(), clip().");
};

struct G07 {
  KEEL_RULE_TEXT(
      "G07", "two clip policies in one recipe: only one can win. Fix: keep one of keel::clip::global_norm, value, adaptive.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::clip); }
};

struct G08 {
  KEEL_RULE_TEXT("G08",
                 "clipping before the finite check turns one NaN into all NaN. Fix: call check(), then clip() on the gradients "
                 "that it returns.");
};

struct G11 {
  KEEL_RULE_TEXT("G11",
                 "a clip limit must be a finite number above zero. Fix: keel::clip::global_norm<1.0>, or keel::clip::none.");
  static constexpr bool broken(config const& c) {
    constexpr double largest = 1.7e308;
    return c.clip.kind != clip::kind::none && c.clip.kind != clip::kind::custom &&
           !(c.clip.limit > 0.0 && c.clip.limit < largest);
  }
};

using clip_rules = list<G07, G11>;
using clip_order_rules = list<G01, G02, G08>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
