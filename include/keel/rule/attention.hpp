// A: the attention kernel.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct A22 {
  KEEL_RULE_TEXT("A22", "",
                 "this loss never calls keel::attention, so attention::fused would have no effect. Fix: call "
                 "keel::attention(query, key, value) in the model.");
  static constexpr auto decided = rule::decided::running;
};

using attention_order_rules = list<A22>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
