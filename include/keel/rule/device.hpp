// X: graph capture, and the kind of device.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct X03 {
  KEEL_RULE_TEXT("X03", "LibTorch, PyTorch",
                 "a captured graph needs fixed shapes, and this recipe changes them. Fix: keel::device::cuda, or padded data "
                 "and no rung that halves or shortens.");
  static constexpr bool broken(config const& c) {
    bool shape_changes = c.data.ragged || c.data.packed;
    for (int i = 0; i < c.oom.count; ++i) {
      auto const kind = c.oom.rungs[i].kind;
      shape_changes |= kind == oom::rung_kind::halve_micro_batch || kind == oom::rung_kind::shorten_sequence;
    }
    return c.device.graph_captured && shape_changes;
  }
};

struct X10 {
  KEEL_RULE_TEXT("X10", "",
                 "the recipe and the model are for different kinds of device. Fix: model->to(device), or keel::device::any.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    bool const both_known = c.device.kind != device::kind::any && c.run.device != device::kind::any;
    return c.run.known && both_known && c.device.kind != c.run.device;
  }
};

using device_rules = list<X03, X10>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
