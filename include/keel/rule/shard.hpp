// Z: sharding.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct Z01 {
  KEEL_RULE_TEXT("Z01",
                 "two sharding policies in one recipe: both would own the parameters. Fix: keep one of keel::shard::{none, "
                 "replicate, zero}.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::shard); }
};

using shard_rules = list<Z01>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
