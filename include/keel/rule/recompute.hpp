// A: recomputation of activations. A mode that a rung turns on is checked like that of the recipe.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct A01 {
  KEEL_RUNG_RULE_TEXT("A01", "DeepSpeed (before PR 8148)",
                      "non-reentrant recompute reads parameters that ZeRO-3 freed. Fix: keel::recompute::reentrant, or "
                      "keel::shard::zero<2>.");
  // Accepted, it trains: keel::unit gathers inside the recomputation. keel::recompute outside of units does not.
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) {
    return c.recompute.kind == recompute_kind::non_reentrant && c.shard.stage == 3;
  }
};

struct A02 {
  KEEL_RUNG_RULE_TEXT(
      "A02", "LibTorch, PyTorch (warns)",
      "a reentrant block whose inputs need no gradient trains nothing. Fix: non_reentrant, or model::inputs_require_grad.");
  static constexpr bool broken(config const& c) {
    return c.recompute.kind == recompute_kind::reentrant && c.model.partly_frozen && !c.model.inputs_require_grad &&
           c.shard.stage != 3;
  }
};

struct A03 {
  KEEL_RUNG_RULE_TEXT(
      "A03", "DeepSpeed (before PR 8148)",
      "frozen under ZeRO-3, blocks need inputs with gradients. Fix: recompute::reentrant with model::inputs_require_grad.");
  static constexpr bool broken(config const& c) {
    return c.recompute.kind != recompute_kind::none && c.model.partly_frozen && !c.model.inputs_require_grad &&
           c.shard.stage == 3;
  }
};

struct A04 {
  KEEL_RUNG_RULE_TEXT("A04", "none known",
                      "reentrant recompute fails under autograd::grad. Fix: recompute::none, no such rung, or "
                      "non_reentrant below ZeRO-3.");
  static constexpr bool broken(config const& c) {
    return c.recompute.kind == recompute_kind::reentrant && c.model.inner_gradients;
  }
};

struct A16 {
  KEEL_RUNG_RULE_TEXT(
      "A16", "LibTorch, PyTorch",
      "recompute may route rows to other experts than before. Fix: recompute::none, no such rung, or keel::accept<\"A16\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.recompute.kind != recompute_kind::none && c.model.routing; }
};

struct A17 {
  KEEL_RUNG_RULE_TEXT(
      "A17", "LibTorch, PyTorch",
      "recompute updates batch norm's running statistics twice. Fix: recompute::none, no such rung, or keel::accept<\"A17\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.recompute.kind != recompute_kind::none && c.model.batch_norm; }
};

struct A21 {
  KEEL_RULE_TEXT("A21", "",
                 "no part of this loss is a keel::unit, so recompute would save nothing. Fix: wrap each block's forward pass "
                 "in keel::unit.");
  static constexpr auto decided = rule::decided::running;
};

using recompute_order_rules = list<A21>;
using recompute_rules = list<A01, A02, A03, A04, A16, A17>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
