// A: recomputation of activations.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct A01 {
  KEEL_RULE_TEXT("A01",
                 "non-reentrant recompute meets parameters that ZeRO-3 has already released. Fix: keel::recompute::reentrant, "
                 "or keel::shard::zero<2>.");
  static constexpr bool broken(config const& c) {
    return c.recompute.kind == recompute_kind::non_reentrant && c.shard.stage == 3;
  }
};

struct A02 {
  KEEL_RULE_TEXT("A02",
                 "reentrant recompute of a partly frozen model gives no gradients where no input requires grad. Fix: "
                 "keel::recompute::non_reentrant.");
  static constexpr bool broken(config const& c) {
    return c.recompute.kind == recompute_kind::reentrant && c.model.partly_frozen && c.shard.stage != 3;
  }
};

struct A03 {
  KEEL_RULE_TEXT("A03",
                 "no recompute works on a partly frozen model under ZeRO-3. Fix: keel::shard::zero<2> with "
                 "recompute::non_reentrant, or keel::recompute::none.");
  static constexpr bool broken(config const& c) {
    return c.recompute.kind != recompute_kind::none && c.model.partly_frozen && c.shard.stage == 3;
  }
};

using recompute_rules = list<A01, A02, A03>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
