// P: precision and loss scale.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct P01 {
  KEEL_RULE_TEXT("P01", "LibTorch, PyTorch, KempnerForge",
                 "fp16 without a loss scale flushes small gradients to zero. Fix: add keel::loss_scale::dynamic<>, or use "
                 "keel::precision::bf16.");
  static constexpr bool broken(config const& c) {
    return c.precision.kind == precision::kind::fp16 && c.loss_scale.kind == loss_scale::kind::none;
  }
};

struct P02 {
  KEEL_RULE_TEXT("P02", "LibTorch, PyTorch",
                 "fp32 and bf16 need no loss scale, and its skips would hide real NaNs. Fix: keel::loss_scale::none, or "
                 "keel::precision::fp16.");
  static constexpr bool broken(config const& c) {
    return c.precision.kind != precision::kind::fp16 && c.loss_scale.kind != loss_scale::kind::none;
  }
};

struct P04 {
  KEEL_RULE_TEXT("P04", "LibTorch, PyTorch (FSDP ShardedGradScaler)",
                 "fp16 parameters have fp16 gradients, which no loss scale makes safe. Fix: fp32 parameters; keel::precision "
                 "casts for the passes.");
  static constexpr bool broken(config const& c) { return c.model.half_parameters; }
};

struct P06 {
  KEEL_RUNG_RULE_TEXT("P06", "LibTorch, PyTorch, DeepSpeed",
                      "bf16 gradients lose small addends as they add up. Fix: fp32 parameters, or keel::accept<\"P06\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.model.bfloat16_parameters && c.accumulate.count > 1; }
};

struct P08 {
  KEEL_FLOOR_RULE_TEXT(
      "P08", "LibTorch, PyTorch",
      "a loss scale must be positive and representable in fp32. Fix: keel::loss_scale::fixed<1024.0>, or dynamic<>.");
  static constexpr bool broken(config const& c) {
    constexpr double largest = 3.4e38;
    // Below this, the loss times the scale is zero in fp32.
    constexpr double smallest = 1.2e-38;
    auto const usable = [](double scale) { return scale >= smallest && scale < largest; };
    return c.loss_scale.kind != loss_scale::kind::none && !usable(c.loss_scale.initial);
  }
};

struct P09 {
  KEEL_RULE_TEXT("P09", "LibTorch, PyTorch (setters)",
                 "this loss scale cannot both grow and shrink. Fix: growth in (1, 1e38), backoff in (0, 1), floor "
                 "up to initial, growth_interval and hysteresis at least 1.");
  static constexpr bool broken(config const& c) {
    auto const& scale = c.loss_scale;
    bool const factors = scale.growth > 1.0 && scale.growth < 3.4e38 && scale.backoff > 0.0 && scale.backoff < 1.0;
    bool const counts = scale.growth_interval > 0 && scale.hysteresis > 0;
    bool const moves = factors && counts && scale.floor <= scale.initial;
    return scale.kind == loss_scale::kind::dynamic && !moves;
  }
};

struct P10 {
  KEEL_RULE_TEXT("P10", "LibTorch, PyTorch, Lightning, Accelerate",
                 "without a floor that raises, every step may be skipped forever. Fix: "
                 "keel::loss_scale::at_floor_raise, with a floor above 0 and up to initial.");
  static constexpr bool broken(config const& c) {
    return c.loss_scale.kind == loss_scale::kind::dynamic && !(c.loss_scale.floor > 0.0 && c.loss_scale.raise_at_floor);
  }
};

struct P11 {
  KEEL_RULE_TEXT("P11", "LibTorch, PyTorch (positional closure)",
                 "an optimizer with a closure mixes gradients of several scales. Fix: keel::precision::bf16 without a loss "
                 "scale, or AdamW or SGD.");
  static constexpr bool broken(config const& c) { return c.optimizer.closure && c.loss_scale.kind != loss_scale::kind::none; }
};

struct P12 {
  KEEL_RULE_TEXT("P12", "PyTorch",
                 "this optimizer unscales gradients that the step has already unscaled. Fix: keel::precision::bf16 without a "
                 "loss scale, or another optimizer.");
  static constexpr bool broken(config const& c) { return c.optimizer.unscales && c.loss_scale.kind != loss_scale::kind::none; }
};

struct P14 {
  KEEL_RULE_TEXT(
      "P14", "PyTorch, Lightning (warns)",
      "this device has no fp16 kernels. Fix: keel::precision::bf16 without a loss scale, or move the model to a GPU.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    return c.run.known && c.precision.kind == precision::kind::fp16 && !c.run.half_kernels;
  }
};

struct P15 {
  KEEL_RULE_TEXT("P15", "LibTorch, PyTorch",
                 "this device has no bf16 kernels. Fix: keel::precision::fp16 with keel::loss_scale::dynamic<>, or "
                 "keel::precision::fp32.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    return c.run.known && c.precision.kind == precision::kind::bf16 && !c.run.bfloat16_kernels;
  }
};

struct P21 {
  KEEL_RULE_TEXT("P21", "LibTorch",
                 "these gradients are already unscaled. Fix: call unscale() once, on what complete() returns.");
};

using precision_rules = list<P01, P02, P04, P06, P08, P09, P10, P11, P12, P14, P15>;
using precision_order_rules = list<P21>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
