// D: the list itself. Slots whose doubles the catalogue knows under another id are P03, G07, S14, Z01.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct D00 {
  KEEL_RULE_TEXT("D00", "",
                 "a type in this recipe is not a policy. Fix: move options into their policy; write your own as "
                 "keel/policy/slot.hpp describes.");
  static constexpr bool broken(config const& c) { return c.strangers > 0; }
};

struct D01 {
  KEEL_RULE_TEXT(
      "D01", "",
      "two loss_scale policies in one recipe: only one can apply. Fix: keep one of keel::loss_scale::{none, fixed, dynamic}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::loss_scale); }
};

struct D02 {
  KEEL_RULE_TEXT("D02", "", "two accumulate policies in one recipe: only one can apply. Fix: keep one keel::accumulate<N>.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::accumulate); }
};

struct D03 {
  KEEL_RULE_TEXT("D03", "",
                 "two nonfinite policies in one recipe: only one can apply. Fix: keep one of keel::nonfinite::{raise, warn, "
                 "skip, rollback}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::nonfinite); }
};

struct D04 {
  KEEL_RULE_TEXT(
      "D04", "",
      "two spike policies in one recipe: only one can apply. Fix: keep one of keel::spike::{ignore, skip, rollback}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::spike); }
};

struct D05 {
  KEEL_RULE_TEXT("D05", "",
                 "two schedule policies in one recipe: only one can apply. Fix: keep one of keel::schedule::{constant, linear, "
                 "cosine, ..}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::schedule); }
};

struct D06 {
  KEEL_RULE_TEXT("D06", "",
                 "two recompute policies in one recipe: only one can apply. Fix: keep one of keel::recompute::{none, "
                 "reentrant, non_reentrant}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::recompute); }
};

struct D07 {
  KEEL_RULE_TEXT("D07", "",
                 "two offload policies in one recipe: only one can apply. Fix: keep one of keel::offload::{none, optimizer}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::offload); }
};

struct D08 {
  KEEL_RULE_TEXT(
      "D08", "",
      "two attention policies in one recipe: only one can apply. Fix: keep one of keel::attention::{automatic, math, fused}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::attention); }
};

struct D09 {
  KEEL_RULE_TEXT("D09", "",
                 "two oom policies in one recipe: only one can apply. Fix: keep keel::oom::raise or one keel::oom::ladder.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::oom); }
};

struct D10 {
  KEEL_RULE_TEXT(
      "D10", "",
      "two health policies in one recipe: only one can apply. Fix: keep one of keel::health::{off, sft, grpo, ebft, watch}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::health); }
};

struct D11 {
  KEEL_RULE_TEXT(
      "D11", "",
      "two determinism policies in one recipe: only one can apply. Fix: keep one of keel::determinism::{off, seeded, strict}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::determinism); }
};

struct D12 {
  KEEL_RULE_TEXT(
      "D12", "",
      "two objective policies in one recipe: only one can apply. Fix: keep one of keel::objective::{supervised, grpo, ebft}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::objective); }
};

struct D13 {
  KEEL_RULE_TEXT("D13", "", "two ema policies in one recipe: only one can apply. Fix: keep one keel::ema<D>, or keel::no_ema.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::ema); }
};

struct D14 {
  KEEL_RULE_TEXT("D14", "",
                 "two model policies in one recipe: only one can apply. Fix: list all facts in one keel::model::has<..>.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::model); }
};

struct D15 {
  KEEL_RULE_TEXT(
      "D15", "",
      "two evaluation policies in one recipe: only one can apply. Fix: keep one of keel::evaluation::{none, every}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::evaluation); }
};

struct D16 {
  KEEL_RULE_TEXT("D16", "",
                 "two profile policies in one recipe: only one can apply. Fix: keep one of keel::profile::{off, every}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::profile); }
};

struct D17 {
  KEEL_RULE_TEXT("D17", "",
                 "two timeout policies in one recipe: only one can apply. Fix: keep one of keel::timeout::{none, set}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::timeout); }
};

struct D18 {
  KEEL_RULE_TEXT(
      "D18", "",
      "two optimizer policies in one recipe: only one can apply. Fix: list all facts in one keel::optimizer::is<..>.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::optimizer); }
};

struct D19 {
  KEEL_RULE_TEXT("D19", "",
                 "two data policies in one recipe: only one can apply. Fix: list all facts in one keel::data::is<..>.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::data); }
};

struct D27 {
  KEEL_RULE_TEXT(
      "D27", "",
      "two device policies in one recipe: only one can apply. Fix: keep one of keel::device::{any, cpu, cuda, cuda_with}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::device); }
};

struct D28 {
  KEEL_RULE_TEXT("D28", "", "two world policies in one recipe: only one can apply. Fix: keep one of keel::world::{any, size}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::world); }
};

struct D20 {
  KEEL_RULE_TEXT("D20", "", "two options of one policy set the same value differently. Fix: keep one of them.");
  static constexpr bool broken(config const& c) { return c.disagreeing_options > 0; }
};

struct D21 {
  KEEL_RULE_TEXT("D21", "", "this type is not a recipe. Fix: derive it publicly, as struct mine : keel::recipe<..> {} does.");
};

struct D22 {
  KEEL_RULE_TEXT(
      "D22", "",
      "keel::accept names no rule that applies here, or is used more than 8 times. Fix: use an id from keel/rule/README.md.");
  static constexpr bool broken(config const& /*value*/) { return false; }
};

struct D23 {
  KEEL_RULE_TEXT(
      "D23", "",
      "keel::accept names an error, and only warnings can be accepted. Fix: remove the accept and follow that rule's fix.");
  static constexpr bool broken(config const& /*value*/) { return false; }
};

struct D24 {
  KEEL_RULE_TEXT("D24", "",
                 "keel::accept names a rule that this recipe does not break and would hide a later mistake. Fix: remove it.");
  static constexpr bool broken(config const& /*value*/) { return false; }
};

struct D25 {
  KEEL_RULE_TEXT("D25", "",
                 "a rule of your own is malformed, or its id is taken. Fix: give it the id, text, broken and demand that "
                 "keel/rule/rule.hpp describes.");
  static constexpr bool broken(config const& c) { return c.unsound_rules > 0; }
};

struct D26 {
  KEEL_RULE_TEXT("D26", "",
                 "an interval has no unit that its policy takes. Fix: 500_steps or 1_epochs, for checkpoints also 10_min, with "
                 "using namespace keel::literals.");
  static constexpr bool broken(config const& c) { return c.unitless_intervals > 0; }
};

using slot_rules = list<D00, D01, D02, D03, D04, D05, D06, D07, D08, D09, D10, D11, D12, D13, D14, D15, D16, D17, D18, D19, D27,
                        D28, D20, D25, D26>;
/// Asked about the rules themselves, after all others: see judge_accepted in keel/recipe/judge.hpp.
using accept_rules = list<D22, D23, D24>;
using slot_order_rules = list<D21>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
