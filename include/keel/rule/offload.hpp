// Z: state moved off the device.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct Z02 {
  KEEL_RUNG_RULE_TEXT("Z02", "none known",
                      "this optimizer's kernels cannot read host memory. Fix: no offload, or keel::adamw.");
  static constexpr bool broken(config const& c) {
    return c.offload.kind == offload::kind::optimizer && c.optimizer.device_only;
  }
};

using offload_rules = list<Z02>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
