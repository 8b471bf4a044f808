// Y: logged metrics. The types of keel/metrics/metric.hpp check these rules.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct Y01 {
  KEEL_RULE_TEXT(
      "Y01", "LibTorch, PyTorch, Lightning, KempnerForge",
      "one rank's value logged for the whole run misleads. Fix: log what reduced(world, value) of a keel::metric returns.");
  static constexpr auto decided = rule::decided::call;
};

struct Y02 {
  KEEL_RULE_TEXT("Y02", "LibTorch, PyTorch",
                 "a metric must say how ranks are combined. Fix: keel::metric<keel::reduce::mean>, sum, min or max.");
  static constexpr auto decided = rule::decided::call;
};

using metric_order_rules = list<Y01, Y02>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
