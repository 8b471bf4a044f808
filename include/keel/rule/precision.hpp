// P: precision and loss scale.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct P01 {
  KEEL_RULE_TEXT("P01", "LibTorch, PyTorch, KempnerForge",
                 "fp16 without a loss scale loses small gradients to zero. Fix: add keel::loss_scale::dynamic<>, or use "
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

struct P03 {
  KEEL_RULE_TEXT("P03", "none known",
                 "two precisions in one recipe contradict each other. Fix: keep one of keel::precision::fp32, bf16, fp16.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::precision); }
};

struct P04 {
  KEEL_RULE_TEXT("P04", "LibTorch, PyTorch (FSDP ShardedGradScaler)",
                 "fp16 gradients vanish without a loss scale and cannot be unscaled safely with one. Fix: fp32 parameters with "
                 "keel::precision::fp16.");
  static constexpr bool broken(config const& c) { return c.model.half_parameters; }
};

struct P06 {
  KEEL_RUNG_RULE_TEXT("P06", "LibTorch, PyTorch, DeepSpeed",
                      "bf16 gradients lose small addends when they accumulate. Fix: fp32 parameters, or "
                      "keel::accept<\"P06\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.model.bfloat16_parameters && c.accumulate.count > 1; }
};

struct P08 {
  KEEL_FLOOR_RULE_TEXT("P08", "LibTorch, PyTorch",
                       "a loss scale must be a finite number that fp32 holds above zero. Fix: "
                       "loss_scale::initial<65536.0>, floor<1.0>.");
  static constexpr bool broken(config const& c) {
    constexpr double largest = 3.4e38;
    // Below, the loss times the scale is zero in fp32.
    constexpr double smallest = 1.2e-38;
    auto const usable = [](double scale) { return scale >= smallest && scale < largest; };
    return c.loss_scale.kind != loss_scale::kind::none && !usable(c.loss_scale.initial);
  }
};

struct P09 {
  KEEL_RULE_TEXT("P09", "LibTorch, PyTorch (setters)",
                 "a scale that cannot grow and shrink is stuck. Fix: keel::loss_scale::growth above 1, backoff between 0 and "
                 "1, floor below initial.");
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
                 "without a floor and an end there every step is skipped for ever. Fix: keel::loss_scale::floor<1.0> with "
                 "keel::loss_scale::at_floor_raise.");
  static constexpr bool broken(config const& c) {
    return c.loss_scale.kind == loss_scale::kind::dynamic && !(c.loss_scale.floor > 0.0 && c.loss_scale.raise_at_floor);
  }
};

struct P11 {
  KEEL_RULE_TEXT("P11", "LibTorch, PyTorch (positional closure)",
                 "an optimizer that takes a closure sees gradients of several scales in one step. Fix: "
                 "keel::loss_scale::none, or AdamW or SGD.");
  static constexpr bool broken(config const& c) { return c.optimizer.closure && c.loss_scale.kind != loss_scale::kind::none; }
};

struct P12 {
  KEEL_RULE_TEXT("P12", "PyTorch",
                 "a step unscales the gradients, and this optimizer would a second time. Fix: an optimizer that does not, or "
                 "keel::loss_scale::none.");
  static constexpr bool broken(config const& c) { return c.optimizer.unscales && c.loss_scale.kind != loss_scale::kind::none; }
};

struct P14 {
  KEEL_RULE_TEXT("P14", "PyTorch, Lightning (warns)",
                 "this device has no fp16 kernels. Fix: keel::precision::bf16, or move the model to a GPU.");
  static constexpr bool broken(config const& c) {
    bool const without_kernels = c.run.known ? !c.run.half_kernels : c.device.kind == device::kind::cpu;
    return c.precision.kind == precision::kind::fp16 && without_kernels;
  }
};

struct P15 {
  KEEL_RULE_TEXT("P15", "LibTorch, PyTorch",
                 "this device has no bf16 kernels. Fix: keel::precision::fp16 with keel::loss_scale::dynamic<>, or fp32.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    return c.run.known && c.precision.kind == precision::kind::bf16 && !c.run.bfloat16_kernels;
  }
};

struct P19 {
  KEEL_RULE_TEXT("P19", "LibTorch, PyTorch (plain GradScaler + FSDP1)",
                 "ranks that scale alone take different steps. Fix: remove keel::nonfinite::rank_local, so that an overflow "
                 "is everybody's.");
  static constexpr bool broken(config const& c) {
    return several_ranks(c) && c.loss_scale.kind == loss_scale::kind::dynamic && !c.nonfinite.agreed;
  }
};

struct P20 {
  KEEL_RULE_TEXT("P20", "Lightning",
                 "an option is read by nothing in this recipe. Fix: remove it; keel/policy has each policy's options; "
                 "reduce_once wants keel::shard.");
  static constexpr bool broken(config const& c) {
    bool const rollback_options = c.nonfinite.change != nonfinite::change::nothing || c.nonfinite.attempts != 0;
    bool const only_young_daly = c.checkpoint.mean_time_between_failures != 0;
    return (c.nonfinite.kind != nonfinite::kind::rollback && rollback_options) ||
           (c.spike.kind != spike::kind::rollback && c.spike.attempts != 0) ||
           (!c.checkpoint.asynchronous && c.checkpoint.drop_when_busy) ||
           (c.checkpoint.kind != checkpoint::kind::young_daly && only_young_daly) ||
           (c.accumulate.reduce_once && !several_ranks(c));
  }
};

struct P21 {
  KEEL_RULE_TEXT("P21", "LibTorch",
                 "these gradients were already unscaled; twice would divide twice. Fix: call unscale() once, on the result of "
                 "complete().");
};

using precision_rules = list<P01, P02, P03, P04, P06, P08, P09, P10, P11, P12, P14, P15, P19, P20>;
using precision_order_rules = list<P21>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
