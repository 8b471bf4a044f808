// G: clipping and the order of the phases of a step.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct G03 {
  KEEL_RULE_TEXT("G03", "LibTorch, PyTorch (FSDP1)",
                 "your own clip policy sees only one rank's share of the gradients. Fix: keel::clip::global_norm<1.0>, or "
                 "by_joint_norm = true in its settings.");
  static constexpr bool broken(config const& c) {
    return c.clip.kind == clip::kind::custom && !c.clip.by_joint_norm && c.shard.stage >= 2;
  }
};

struct G05 {
  KEEL_RULE_TEXT("G05", "none known",
                 "adaptive clipping compares whole units, which ZeRO splits. Fix: keel::clip::global_norm<1.0>, or "
                 "keel::shard::replicate.");
  static constexpr bool broken(config const& c) { return c.clip.kind == clip::kind::adaptive && c.shard.stage >= 2; }
};

struct G06 {
  KEEL_RULE_TEXT("G06", "Accelerate (DeepSpeed)",
                 "keel combines only L2 norms across shards of gradients. Fix: remove keel::clip::order, or "
                 "use keel::shard::replicate.");
  static constexpr bool broken(config const& c) {
    return c.clip.kind == clip::kind::global_norm && c.clip.order != 2.0 && c.shard.stage >= 2;
  }
};

struct G01 {
  KEEL_RULE_TEXT("G01", "LibTorch, PyTorch",
                 "clipping scaled gradients clips them scale times too hard. Fix: call unscale(), then check(), then clip().");
};

struct G02 {
  KEEL_RULE_TEXT("G02", "LibTorch, PyTorch, Accelerate",
                 "clipping part of a sum does not clip the sum. Fix: call complete() after the last micro-batch, then "
                 "unscale(), check(), clip().");
};

struct G08 {
  KEEL_RULE_TEXT("G08", "LibTorch, PyTorch, torchtitan, KempnerForge",
                 "clipping before the finite check spreads one NaN to every gradient. Fix: call check(), then clip() on the "
                 "gradients it returns.");
};

struct G11 {
  KEEL_RULE_TEXT("G11", "LibTorch, PyTorch",
                 "a clip limit must be finite and above zero. Fix: keel::clip::global_norm<1.0>, or keel::clip::none.");
  static constexpr bool broken(config const& c) {
    constexpr double largest = 1.7e308;
    return c.clip.kind != clip::kind::none && c.clip.kind != clip::kind::custom &&
           !(c.clip.limit > 0.0 && c.clip.limit < largest);
  }
};

struct G13 {
  KEEL_RULE_TEXT("G13", "",
                 "clip::zscore needs a window of at least 2 updates and a finite bound. Fix: keel::clip::window<128>, "
                 "keel::clip::at_most<1.0>.");
  static constexpr bool broken(config const& c) {
    bool const sound = c.clip.window >= 2 && c.clip.at_most >= 0.0 && c.clip.at_most < 1.7e308;
    return c.clip.kind == clip::kind::zscore && !sound;
  }
};

struct G14 {
  KEEL_RULE_TEXT("G14", "",
                 "only clip::zscore has a window and at_most, and only clip::global_norm an order. Fix: remove the option, or "
                 "use that policy.");
  static constexpr bool broken(config const& c) {
    bool const taken = ((c.clip.window == 0 && c.clip.at_most == 0.0) || c.clip.kind == clip::kind::zscore) &&
                       (c.clip.order == 2.0 || c.clip.kind == clip::kind::global_norm);
    return c.clip.kind != clip::kind::custom && !taken;
  }
};

struct G15 {
  KEEL_RULE_TEXT("G15", "LibTorch, PyTorch",
                 "a norm has an order of at least 1. Fix: keel::clip::order<1>, keel::clip::order<keel::clip::infinity>, or "
                 "no order, which is 2.");
  static constexpr bool broken(config const& c) { return c.clip.kind == clip::kind::global_norm && !(c.clip.order >= 1.0); }
};

struct G12 {
  KEEL_RULE_TEXT("G12", "LibTorch, PyTorch (DDP)",
                 "a step needs gradients that are complete, unscaled, checked and clipped. Fix: complete(), unscale(), "
                 "check(), clip(), step().");
  static constexpr auto decided = rule::decided::call;
};

struct G16 {
  KEEL_RULE_TEXT("G16", "PyTorch",
                 "an optimizer with a closure compares gradients of one loss, and clipped ones are of another. Fix: "
                 "keel::clip::none, or torch::optim::AdamW.");
  static constexpr bool broken(config const& c) { return c.optimizer.closure && c.clip.kind != clip::kind::none; }
};

using clip_rules = list<G03, G05, G06, G11, G13, G14, G15, G16>;
using clip_order_rules = list<G01, G02, G08, G12>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
