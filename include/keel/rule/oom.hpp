// O: the out-of-memory ladder. Its rungs change the configuration while the run goes on, so every configuration that they
// reach is judged, not only the first (O09).
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

/// The configuration after a rung was taken.
constexpr config after(config c, oom::rung_settings const& rung) {
  switch (rung.kind) {
    case oom::rung_kind::halve_micro_batch:
      if (c.accumulate.micro_batch > 1) {
        c.accumulate.count *= 2;
        c.accumulate.micro_batch /= 2;
      }
      break;
    case oom::rung_kind::enable_recompute:
      c.recompute.kind = rung.recompute;
      break;
    case oom::rung_kind::offload_optimizer:
      c.offload.kind = offload::kind::optimizer;
      break;
    case oom::rung_kind::fused_attention:
      c.attention.kind = attention_kind::fused;
      break;
    case oom::rung_kind::quantize_base:
      c.model.partly_frozen = true;
      break;
    case oom::rung_kind::shorten_sequence:
    case oom::rung_kind::give_up:
    case oom::rung_kind::custom:
    case oom::rung_kind::none:
      break;
  }
  return c;
}

/// True if the rung would change nothing in this configuration.
constexpr bool is_dead(config const& c, oom::rung_settings const& rung) {
  switch (rung.kind) {
    case oom::rung_kind::halve_micro_batch:
      return c.accumulate.micro_batch == 1;
    case oom::rung_kind::enable_recompute:
      return rung.recompute == recompute_kind::none || c.recompute.kind != recompute_kind::none;
    case oom::rung_kind::offload_optimizer:
      return c.offload.kind == offload::kind::optimizer;
    case oom::rung_kind::fused_attention:
      return c.attention.kind == attention_kind::fused;
    default:
      return false;
  }
}

struct O02 {
  KEEL_RULE_TEXT("O02",
                 "a rung that makes the batch smaller changes the experiment in silence. Fix: keel::oom::halve_micro_batch, "
                 "which keeps the batch.");
  static constexpr bool broken(config const& c) {
    for (int i = 0; i < c.oom.count; ++i) {
      if (!c.oom.rungs[i].keeps_effective_batch) return true;
    }
    return false;
  }
};

struct O03 {
  KEEL_RULE_TEXT("O03",
                 "these gradients were applied already; a second step or a retry would count the batch twice. Fix: a new "
                 "keel::begin_window().");
};

struct O05 {
  KEEL_RULE_TEXT("O05", "a ladder without an end retries for ever. Fix: make keel::oom::give_up its last rung.");
  static constexpr bool broken(config const& c) {
    return c.oom.kind == oom::kind::ladder &&
           (c.oom.count == 0 || c.oom.rungs[c.oom.count - 1].disturbance != oom::disturbance::terminal);
  }
};

struct O06 {
  KEEL_RULE_TEXT("O06",
                 "a rung that disturbs less comes after one that disturbs more. Fix: order them as keel/policy/oom.hpp lists "
                 "them, give_up last.");
  static constexpr bool broken(config const& c) {
    for (int i = 1; i < c.oom.count; ++i) {
      if (c.oom.rungs[i].disturbance < c.oom.rungs[i - 1].disturbance) return true;
    }
    return false;
  }
};

struct O08 {
  KEEL_RULE_TEXT("O08",
                 "a rung of the ladder is there twice or already active, so it frees nothing. Fix: remove that rung, or its "
                 "policy from the recipe.");
  static constexpr bool broken(config const& c) {
    config reached = c;
    for (int i = 0; i < c.oom.count; ++i) {
      auto const& rung = c.oom.rungs[i];
      if (is_dead(reached, rung)) return true;
      for (int j = 0; j < i; ++j) {
        bool const same_kind = c.oom.rungs[j].kind == rung.kind && rung.kind != oom::rung_kind::custom;
        // A shorter length frees more, so shorten_sequence may come again.
        if (same_kind && !(rung.kind == oom::rung_kind::shorten_sequence && rung.length < c.oom.rungs[j].length)) return true;
      }
      reached = after(reached, rung);
    }
    return false;
  }
};

/// Of the rules above and of every other family; O09 asks them about what the rungs reach.
using oom_rules = list<O02, O05, O06, O08>;
using oom_order_rules = list<O03>;

template <class BaseRules>
struct reachable;

template <class... Base>
struct reachable<list<Base...>> {
  /// True if a rung leads to a configuration that breaks a rule which the one before the ladder keeps.
  static constexpr bool breaks_a_rule(config const& c) {
    config reached = c;
    for (int i = 0; i < c.oom.count; ++i) {
      reached = after(reached, c.oom.rungs[i]);
      if ((false || ... || (Base::broken(reached) && !Base::broken(c)))) return true;
    }
    return false;
  }
};

template <class BaseRules>
struct O09_over {
  KEEL_RULE_TEXT("O09",
                 "a rung of the ladder leads to a recipe that another rule refuses. Fix: remove that rung; type its policy "
                 "into the recipe to read the rule.");
  static constexpr bool broken(config const& c) { return reachable<BaseRules>::breaks_a_rule(c); }
};

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
