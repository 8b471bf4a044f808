// T: facts about the data, and checks of it.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct T01 {
  KEEL_RULE_TEXT("T01", "LibTorch, Megatron-LM, TRL (warns), Axolotl (warns)",
                 "packed sequences attend to each other. Fix: keel::model::has<keel::model::sequence_boundaries> if attention "
                 "stops there, or keel::accept<\"T01\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.data.packed && !c.model.sequence_boundaries; }
};

struct T03 {
  KEEL_RULE_TEXT("T03", "none known",
                 "packing loses which completion a reward belongs to. Fix: data that is not keel::data::packed, or "
                 "keel::model::has<keel::model::sequence_boundaries>.");
  static constexpr bool broken(config const& c) {
    return c.data.packed && !c.model.sequence_boundaries && c.objective.kind != objective::kind::supervised;
  }
};

struct T08 {
  KEEL_RULE_TEXT("T08", "",
                 "a batch has no size below 0. Fix: keel::batch_guard::vocabulary<N>, classes<N> and longest<N> from 1 on, or "
                 "remove that option.");
  static constexpr bool broken(config const& c) {
    return c.batch_guard.vocabulary < 0 || c.batch_guard.classes < 0 || c.batch_guard.longest < 0;
  }
};

using data_rules = list<T01, T03, T08>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
