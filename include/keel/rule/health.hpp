// Y: alarms that watch a run.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct Y10 {
  KEEL_RULE_TEXT("Y10", "", "health::watch without an alarm watches nothing. Fix: name its alarms, or keel::health::off.");
  static constexpr bool broken(config const& c) { return c.health.kind == health::kind::watch && c.health.alarms < 1; }
};

struct Y11 {
  KEEL_RULE_TEXT("Y11", "",
                 "these alarms are for another objective. Fix: keel::health::sft with keel::objective::supervised, grpo with "
                 "grpo, ebft with ebft.");
  static constexpr bool broken(config const& c) {
    switch (c.health.kind) {
      case health::kind::sft:
        return c.objective.kind != objective::kind::supervised;
      case health::kind::grpo:
        return c.objective.kind != objective::kind::grpo;
      case health::kind::ebft:
        return c.objective.kind != objective::kind::ebft;
      case health::kind::off:
      case health::kind::watch:
        return false;
    }
    return false;
  }
};

using health_rules = list<Y10, Y11>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
