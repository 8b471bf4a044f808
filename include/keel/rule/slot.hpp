// D: the list itself. given_twice.hpp has the rules against two policies for a slot.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct D00 {
  KEEL_RULE_TEXT("D00", "",
                 "a type in this recipe is not a policy. Fix: move options into their policy; write your own as "
                 "keel/policy/slot.hpp describes.");
  static constexpr bool broken(config const& c) { return c.unknown_entries > 0; }
};

struct D20 {
  KEEL_RULE_TEXT("D20", "", "two options of one policy set the same value differently. Fix: keep one of them.");
  static constexpr bool broken(config const& c) { return c.disagreeing_options > 0; }
};

struct D21 {
  KEEL_RULE_TEXT("D21", "", "this type is not a recipe. Fix: derive it publicly, as struct mine : keel::recipe<..> {} does.");
};

struct D22 {
  KEEL_RULE_TEXT("D22", "",
                 "keel::accept names no rule that applies here, or is used more than 8 times. Fix: remove it, or "
                 "name a warning that this recipe breaks, 8 at most.");
  static constexpr bool broken(config const& /*value*/) { return false; }
};

struct D23 {
  KEEL_RULE_TEXT(
      "D23", "",
      "keel::accept names an error, and only warnings can be accepted. Fix: remove the accept and follow that rule's fix.");
  static constexpr bool broken(config const& /*value*/) { return false; }
};

struct D24 {
  KEEL_RULE_TEXT("D24", "",
                 "keel::accept names a rule that this recipe does not break and would hide a later mistake. Fix: remove it.");
  static constexpr bool broken(config const& /*value*/) { return false; }
};

struct D25 {
  KEEL_RULE_TEXT("D25", "",
                 "a rule of your own is malformed, given twice, or its id is taken. Fix: one type with the id, "
                 "text and broken that keel/rule/rule.hpp describes.");
  static constexpr bool broken(config const& c) { return c.malformed_rules > 0; }
};

struct D26 {
  KEEL_RULE_TEXT("D26", "",
                 "an interval has no unit that its policy takes. Fix: 500_steps or 1_epochs, for checkpoints also 10_min, with "
                 "using namespace keel::literals.");
  static constexpr bool broken(config const& c) { return c.unitless_intervals > 0; }
};

/// Returns the index of the first slot whose policy has an option that has no effect in this recipe; -1 if there is none.
constexpr int slot_with_unread_option(config const& c) {
  bool const rollback_options = c.nonfinite.change != nonfinite::change::nothing || c.nonfinite.attempts != 0;
  if (c.nonfinite.kind != nonfinite::kind::rollback && rollback_options) return index_of<slot::nonfinite>;
  if (c.spike.kind != spike::kind::rollback && c.spike.attempts != 0) return index_of<slot::spike>;
  bool const only_young_daly = c.checkpoint.mean_time_between_failures != 0;
  if ((!c.checkpoint.asynchronous && c.checkpoint.drop_when_busy) ||
      (c.checkpoint.kind != checkpoint::kind::young_daly && only_young_daly)) {
    return index_of<slot::checkpoint>;
  }
  // B21 reports a count of zero.
  bool const sums = c.accumulate.count != 1 || halves(c);
  bool const unread = (c.accumulate.reduce_once && !(several_ranks(c) && sums)) || (c.accumulate.sum && !sums);
  return unread ? index_of<slot::accumulate> : -1;
}

struct P20 {
  KEEL_RULE_TEXT("P20", "Lightning",
                 "an option in this recipe has no effect. Fix: remove it; keel/policy lists what each policy "
                 "reads; reduce_once needs keel::shard::replicate, accumulate<2>.");
  static constexpr bool broken(config const& c) { return slot_with_unread_option(c) >= 0; }
};

using slot_rules = list<D00, D20, D25, D26, P20>;
/// Check the accepted rules themselves, after the other rules: see judge_accepted in keel/recipe/judge.hpp.
using accept_rules = list<D22, D23, D24>;
using slot_order_rules = list<D21>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
