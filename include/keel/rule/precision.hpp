// P: precision and loss scale.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct P01 {
  KEEL_RULE_TEXT("P01",
                 "fp16 without a loss scale loses small gradients to zero. Fix: add keel::loss_scale::dynamic<>, or use "
                 "keel::precision::bf16.");
  static constexpr bool broken(config const& c) {
    return c.precision.kind == precision::kind::fp16 && c.loss_scale.kind == loss_scale::kind::none;
  }
};

struct P02 {
  KEEL_RULE_TEXT("P02",
                 "fp32 and bf16 need no loss scale, and its skips would hide real NaNs. Fix: keel::loss_scale::none, or "
                 "keel::precision::fp16.");
  static constexpr bool broken(config const& c) {
    return c.precision.kind != precision::kind::fp16 && c.loss_scale.kind != loss_scale::kind::none;
  }
};

struct P03 {
  KEEL_RULE_TEXT("P03",
                 "two precisions in one recipe contradict each other. Fix: keep one of keel::precision::fp32, bf16, fp16.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::precision); }
};

struct P08 {
  KEEL_RULE_TEXT("P08",
                 "a loss scale must be a finite number above zero. Fix: keel::loss_scale::fixed<1024.0>, or "
                 "keel::loss_scale::initial<65536.0>.");
  static constexpr bool broken(config const& c) {
    constexpr double largest = 3.4e38;
    auto const usable = [](double scale) { return scale > 0.0 && scale < largest; };
    return c.loss_scale.kind != loss_scale::kind::none && !usable(c.loss_scale.initial);
  }
};

struct P09 {
  KEEL_RULE_TEXT("P09",
                 "a scale that cannot grow and shrink is stuck. Fix: keel::loss_scale::growth above 1, backoff between 0 and "
                 "1, floor below initial.");
  static constexpr bool broken(config const& c) {
    auto const& scale = c.loss_scale;
    bool const factors = scale.growth > 1.0 && scale.growth < 3.4e38 && scale.backoff > 0.0 && scale.backoff < 1.0;
    bool const moves = factors && scale.growth_interval > 0 && scale.floor <= scale.initial;
    return scale.kind == loss_scale::kind::dynamic && !moves;
  }
};

struct P10 {
  KEEL_RULE_TEXT("P10",
                 "without a floor and an end there every step is skipped for ever. Fix: keel::loss_scale::floor<1.0> with "
                 "keel::loss_scale::at_floor_raise.");
  static constexpr bool broken(config const& c) {
    return c.loss_scale.kind == loss_scale::kind::dynamic && !(c.loss_scale.floor > 0.0 && c.loss_scale.raise_at_floor);
  }
};

struct P14 {
  KEEL_RULE_TEXT("P14", "this device has no fp16 kernels. Fix: keel::precision::bf16, or move the model to a GPU.");
  static constexpr bool broken(config const& c) {
    return c.run.known && c.precision.kind == precision::kind::fp16 && !c.run.half_kernels;
  }
};

struct P21 {
  KEEL_RULE_TEXT("P21",
                 "these gradients were already unscaled; twice would divide twice. Fix: call unscale() once, on the result of "
                 "complete().");
};

using precision_rules = list<P01, P02, P03, P08, P09, P10, P14>;
using precision_order_rules = list<P21>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
