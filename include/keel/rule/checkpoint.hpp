// S: checkpoints, and what must be in them.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct S01 {
  KEEL_RULE_TEXT("S01",
                 "an asynchronous save with one checkpoint kept puts the only copy in flight. Fix: keel::checkpoint::keep<2>.");
  static constexpr bool broken(config const& c) {
    return c.checkpoint.kind != checkpoint::kind::never && c.checkpoint.asynchronous && c.checkpoint.keep < 2;
  }
};

struct S05 {
  KEEL_RULE_TEXT("S05",
                 "a policy keeps state that no checkpoint would hold. Fix: give its state `void visit(auto& archive)` that "
                 "names every field.");
  static constexpr bool broken(config const& c) { return c.unsaved_states > 0; }
};

struct S14 {
  KEEL_RULE_TEXT(
      "S14",
      "two checkpoint policies in one recipe: which one saves? Fix: keep one of keel::checkpoint::every, young_daly, never.");
  static constexpr bool broken(config const& c) { return c.gives_twice(slot::checkpoint); }
};

struct S24 {
  KEEL_RULE_TEXT("S24",
                 "a checkpoint interval and the number kept must be at least 1. Fix: keel::checkpoint::every<500_steps, "
                 "keel::checkpoint::keep<2>>.");
  static constexpr bool broken(config const& c) {
    bool const timed =
        c.checkpoint.kind == checkpoint::kind::every_steps || c.checkpoint.kind == checkpoint::kind::every_seconds;
    return (timed && c.checkpoint.interval < 1) || (c.checkpoint.kind != checkpoint::kind::never && c.checkpoint.keep < 1);
  }
};

struct S25 {
  KEEL_RULE_TEXT("S25",
                 "young_daly needs to know how often the machine fails. Fix: "
                 "keel::checkpoint::mean_time_between_failures<24_h>.");
  static constexpr bool broken(config const& c) {
    return c.checkpoint.kind == checkpoint::kind::young_daly && c.checkpoint.mean_time_between_failures < 1;
  }
};

using checkpoint_rules = list<S01, S05, S14, S24, S25>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
