// X: the profiler.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct X07 {
  KEEL_RULE_TEXT("X07", "none known",
                 "a profile needs an active update and a period that holds all of it. Fix: keel::profile::every<1000_steps, "
                 "warmup<1>, active<3>>.");
  static constexpr bool broken(config const& c) {
    auto const& p = c.profile;
    if (p.kind == profile::kind::off) return false;
    return p.active < 1 || p.warmup < 0 || (p.kind == profile::kind::every && p.period < sum(p.warmup, p.active));
  }
};

using profile_rules = list<X07>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
