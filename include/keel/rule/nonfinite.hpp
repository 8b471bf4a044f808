// N: non-finite values, spikes, and what is done about them.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

constexpr bool rolls_back(config const& c) {
  return c.nonfinite.kind == nonfinite::kind::rollback || c.spike.kind == spike::kind::rollback;
}

struct N01 {
  KEEL_RULE_TEXT("N01",
                 "ranks that skip or roll back alone drift apart or hang. Fix: remove keel::nonfinite::rank_local, or "
                 "keel::shard::none in a world of one.");
  static constexpr bool broken(config const& c) {
    bool const several = c.shard.kind != shard::kind::none || c.run.world_size > 1;
    return several && !c.nonfinite.agreed && c.nonfinite.kind != nonfinite::kind::raise;
  }
};

struct N06 {
  KEEL_RULE_TEXT(
      "N06",
      "skipping without an end burns the whole run. Fix: a limit of at least 1 in a row, as in keel::nonfinite::skip<10>.");
  static constexpr bool broken(config const& c) { return c.nonfinite.kind != nonfinite::kind::raise && c.nonfinite.limit < 1; }
};

struct N09 {
  KEEL_RULE_TEXT("N09",
                 "a rollback needs a checkpoint to go back to. Fix: add keel::checkpoint::every<500_steps>, or use "
                 "keel::nonfinite::skip<10>.");
  static constexpr bool broken(config const& c) { return rolls_back(c) && c.checkpoint.kind == checkpoint::kind::never; }
};

struct N10 {
  KEEL_RULE_TEXT(
      "N10",
      "a rollback that changes nothing reaches the same NaN again. Fix: keel::nonfinite::skip_data, lower_lr or reseed.");
  static constexpr bool broken(config const& c) {
    return c.nonfinite.kind == nonfinite::kind::rollback && c.nonfinite.change == nonfinite::change::nothing;
  }
};

struct N11 {
  KEEL_RULE_TEXT("N11", "rolling back without a limit never ends. Fix: keel::nonfinite::attempts<3>.");
  static constexpr bool broken(config const& c) {
    return c.nonfinite.kind == nonfinite::kind::rollback && c.nonfinite.attempts < 1;
  }
};

struct N12 {
  KEEL_RULE_TEXT("N12",
                 "all kept checkpoints may be younger than the fault is old. Fix: more keel::checkpoint::keep<N>, or a longer "
                 "interval, or less patience.");
  static constexpr bool broken(config const& c) {
    long long const patience = c.nonfinite.kind == nonfinite::kind::rollback ? c.nonfinite.limit : 0;
    long long const window = c.spike.kind == spike::kind::rollback ? c.spike.window : 0;
    return rolls_back(c) && c.checkpoint.kind == checkpoint::kind::every_steps && c.checkpoint.interval > 0 &&
           c.checkpoint.keep * c.checkpoint.interval <= patience + window;
  }
};

struct N27 {
  KEEL_RULE_TEXT("N27",
                 "a spike is a z-score above 0 over a window of at least 2. Fix: keel::spike::zscore<6.0> and "
                 "keel::spike::window<128>.");
  static constexpr bool broken(config const& c) {
    bool const sound = c.spike.zscore > 0.0 && c.spike.zscore < 1.7e308 && c.spike.window >= 2;
    return c.spike.kind != spike::kind::ignore && !sound;
  }
};

using nonfinite_rules = list<N01, N06, N09, N10, N11, N12, N27>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
