// D: the list itself. Slots whose doubles the catalogue knows under another id are P03, G07, S14, Z01.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct D00 {
  KEEL_RULE_TEXT("D00",
                 "a type in the recipe is not a policy of keel. Fix: give it in_slot and configured as keel/policy/slot.hpp "
                 "says, or remove it.");
  static constexpr bool broken(config const& c) { return c.strangers > 0; }
};

struct D01 {
  KEEL_RULE_TEXT(
      "D01",
      "two loss_scale policies in one recipe: only one can count. Fix: keep one of keel::loss_scale::{none, fixed, dynamic}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::loss_scale); }
};

struct D02 {
  KEEL_RULE_TEXT("D02", "two accumulate policies in one recipe: only one can count. Fix: keep one keel::accumulate<N>.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::accumulate); }
};

struct D03 {
  KEEL_RULE_TEXT("D03",
                 "two nonfinite policies in one recipe: only one can count. Fix: keep one of keel::nonfinite::{raise, warn, "
                 "skip, rollback}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::nonfinite); }
};

struct D04 {
  KEEL_RULE_TEXT(
      "D04", "two spike policies in one recipe: only one can count. Fix: keep one of keel::spike::{ignore, skip, rollback}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::spike); }
};

struct D05 {
  KEEL_RULE_TEXT("D05",
                 "two schedule policies in one recipe: only one can count. Fix: keep one of keel::schedule::{constant, linear, "
                 "cosine, warmup_stable_decay}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::schedule); }
};

struct D06 {
  KEEL_RULE_TEXT("D06",
                 "two recompute policies in one recipe: only one can count. Fix: keep one of keel::recompute::{none, "
                 "reentrant, non_reentrant}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::recompute); }
};

struct D07 {
  KEEL_RULE_TEXT("D07",
                 "two offload policies in one recipe: only one can count. Fix: keep one of keel::offload::{none, optimizer}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::offload); }
};

struct D08 {
  KEEL_RULE_TEXT("D08",
                 "two attention policies in one recipe: only one can count. Fix: keep one of keel::attention::{math, fused}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::attention); }
};

struct D09 {
  KEEL_RULE_TEXT("D09", "two oom policies in one recipe: only one can count. Fix: keep one of keel::oom::{raise, ladder}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::oom); }
};

struct D10 {
  KEEL_RULE_TEXT(
      "D10",
      "two health policies in one recipe: only one can count. Fix: keep one of keel::health::{off, sft, grpo, ebft, watch}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::health); }
};

struct D11 {
  KEEL_RULE_TEXT(
      "D11",
      "two determinism policies in one recipe: only one can count. Fix: keep one of keel::determinism::{off, seeded, strict}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::determinism); }
};

struct D12 {
  KEEL_RULE_TEXT(
      "D12",
      "two objective policies in one recipe: only one can count. Fix: keep one of keel::objective::{supervised, grpo, ebft}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::objective); }
};

struct D13 {
  KEEL_RULE_TEXT("D13", "two ema policies in one recipe: only one can count. Fix: keep one keel::ema<D>.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::ema); }
};

struct D14 {
  KEEL_RULE_TEXT(
      "D14",
      "two model policies in one recipe: only one can count. Fix: keep one of keel::model::{all_trainable, partly_frozen}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::model); }
};

struct D20 {
  KEEL_RULE_TEXT("D20", "two options of one policy set the same thing to different values. Fix: keep one of them.");
  static constexpr bool broken(config const& c) { return c.disagreeing_options > 0; }
};

struct D21 {
  KEEL_RULE_TEXT("D21", "this type is not a recipe. Fix: struct mine : keel::recipe<..> {}; with the policies in it.");
};

using slot_rules = list<D00, D01, D02, D03, D04, D05, D06, D07, D08, D09, D10, D11, D12, D13, D14, D20>;
using slot_order_rules = list<D21>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
