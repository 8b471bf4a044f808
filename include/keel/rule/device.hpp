// X: the kind of device.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct X10 {
  KEEL_RULE_TEXT("X10", "",
                 "the recipe and the model are for different kinds of device. Fix: model->to(device), or keel::device::any.");
  static constexpr auto decided = rule::decided::construction;
  static constexpr bool broken(config const& c) {
    bool const both_known = c.device.kind != device::kind::any && c.run.device != device::kind::any;
    return c.run.known && both_known && c.device.kind != c.run.device;
  }
};

using device_rules = list<X10>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
