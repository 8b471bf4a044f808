// O: the out-of-memory ladder. All rules check the configurations that its rungs reach: see reachable.hpp.
#pragma once

#include <keel/config/reachable.hpp>
#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

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
    case oom::rung_kind::shorten_sequence:
      return c.batch_guard.longest > 0 && rung.length >= c.batch_guard.longest;
    default:
      return false;
  }
}

struct O01 {
  KEEL_RULE_TEXT("O01", "LibTorch, PyTorch, Accelerate, Transformers",
                 "your own rung, taken by one rank alone, leaves the others in a collective. Fix: take it on all ranks and set "
                 "rung.agreed.");
  static constexpr bool broken(config const& c) {
    if (!several_ranks(c)) return false;
    for (int i = 0; i < c.oom.count; ++i) {
      if (!c.oom.rungs[i].agreed) return true;
    }
    return false;
  }
};

struct O02 {
  KEEL_RULE_TEXT("O02", "LibTorch, Accelerate, Transformers, Axolotl",
                 "a rung that shrinks the batch silently changes the experiment. Fix: remove it, or "
                 "keel::oom::halve_micro_batch first, which keeps the batch.");
  static constexpr bool broken(config const& c) {
    for (int i = 0; i < c.oom.count; ++i) {
      if (!c.oom.rungs[i].keeps_effective_batch) return true;
    }
    return false;
  }
};

struct O03 {
  KEEL_RULE_TEXT("O03", "LibTorch, Composer",
                 "these gradients were already applied; using them again would count the batch twice. Fix: start a new "
                 "keel::begin_update().");
};

struct O05 {
  KEEL_RULE_TEXT("O05", "LibTorch",
                 "a ladder without a last rung retries forever. Fix: make keel::oom::give_up its last rung.");
  static constexpr bool broken(config const& c) {
    if (c.oom.kind != oom::kind::ladder) return false;
    // O23 reports entries that are not rungs: on a ladder without any rung, or one with too many entries.
    if (c.oom.misfits > 0 && (c.oom.count == 0 || c.oom.count == oom::max_rungs)) return false;
    return c.oom.count == 0 || c.oom.rungs[c.oom.count - 1].disturbance != oom::disturbance::terminal;
  }
};

struct O06 {
  KEEL_RULE_TEXT("O06", "LibTorch",
                 "a gentler rung comes after a more disruptive one. Fix: order the rungs as keel/policy/oom.hpp lists them, "
                 "give_up last.");
  static constexpr bool broken(config const& c) {
    for (int i = 1; i < c.oom.count; ++i) {
      if (c.oom.rungs[i].disturbance < c.oom.rungs[i - 1].disturbance) return true;
    }
    return false;
  }
};

/// Returns the index of the first rung that would free nothing; -1 if all of them free memory.
constexpr int dead_rung(config const& c) {
  config reached = c;
  for (int i = 0; i < c.oom.count; ++i) {
    auto const& rung = c.oom.rungs[i];
    if (is_dead(reached, rung)) return i;
    for (int j = 0; j < i; ++j) {
      bool const same_kind = c.oom.rungs[j].kind == rung.kind && rung.kind != oom::rung_kind::custom;
      // shorten_sequence may be repeated with a smaller length, which frees more.
      if (same_kind && !(rung.kind == oom::rung_kind::shorten_sequence && rung.length < c.oom.rungs[j].length)) return i;
    }
    take_rung(reached, rung);
  }
  return -1;
}

struct O08 {
  KEEL_RULE_TEXT("O08", "LibTorch",
                 "a rung is repeated or already in effect, so it frees nothing. Fix: remove that rung, or the "
                 "policy or earlier rung that does the same.");
  static constexpr bool broken(config const& c) { return dead_rung(c) >= 0; }
};

struct O11 {
  KEEL_RULE_TEXT("O11", "LibTorch, Composer",
                 "a profile of halved micro-batches compares with no other. Fix: keel::profile::off, a ladder without "
                 "halve_micro_batch, or keel::accept<\"O11\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.profile.kind != profile::kind::off && halves(c); }
};

struct O21 {
  KEEL_RULE_TEXT("O21", "",
                 "a sequence cannot be shortened to nothing. Fix: keel::oom::shorten_sequence<512>, at least 1 "
                 "token and fewer than a rung before it.");
  static constexpr bool broken(config const& c) {
    for (int i = 0; i < c.oom.count; ++i) {
      if (c.oom.rungs[i].kind == oom::rung_kind::shorten_sequence && c.oom.rungs[i].length < 1) return true;
    }
    return false;
  }
};

struct O22 {
  KEEL_RULE_TEXT("O22", "",
                 "release_after needs 1 update or more, and a rung that changes no experiment. Fix: "
                 "keel::oom::release_after<500_steps> with such a rung, or remove it.");
  static constexpr bool broken(config const& c) {
    if (!c.oom.releases) return false;
    bool gives_back = false;
    for (int i = 0; i < c.oom.count; ++i) gives_back |= oom::is_releasable(c.oom.rungs[i]);
    return c.oom.release_after < 1 || !gives_back;
  }
};

struct O23 {
  KEEL_RULE_TEXT("O23", "",
                 "an entry is not a rung, or this ladder's 17th. Fix: remove it, or make it one of 16 rungs of "
                 "keel/policy/oom.hpp, in their order; give_up last.");
  static constexpr bool broken(config const& c) { return c.oom.misfits > 0; }
};

/// Reports a custom rule that a rung breaks, because the rule's own text cannot name the rung.
struct O09 {
  KEEL_RULE_TEXT("O09", "LibTorch",
                 "a rung, a rollback or the scale's floor would break a rule of your own. Fix: remove that rung, or put its "
                 "policy into the recipe to see the rule.");
  static constexpr auto decided = rule::decided::recipe;
};

struct O10 {
  KEEL_RULE_TEXT("O10", "LibTorch, Composer",
                 "smaller micro-batches change batch norm's statistics. Fix: layer norm, a ladder without halve_micro_batch, "
                 "or keel::accept<\"O10\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.model.batch_norm && halves(c); }
};

struct O15 {
  KEEL_RULE_TEXT("O15", "none known",
                 "half of this micro-batch is not a whole number of groups. Fix: keel::micro_batch<N> of an even "
                 "number of groups, or no halve_micro_batch.");
  static constexpr bool broken(config const& c) {
    bool const groups = c.objective.kind != objective::kind::supervised && c.objective.group > 1 && !c.data.grouped;
    // A micro-batch that already splits groups keeps none whole.
    bool const whole =
        c.accumulate.micro_batch > 0 && c.objective.group > 1 && c.accumulate.micro_batch % c.objective.group == 0;
    return groups && halves(c) && whole && c.accumulate.micro_batch % product(2, c.objective.group) != 0;
  }
};

/// Checked when a trainer or step inspects its model.
struct O20 {
  KEEL_RULE_TEXT("O20", "",
                 "this model has no keel::lora layer, so oom::quantize_base would free nothing. Fix: use keel::lora for its "
                 "linear layers, or remove that rung.");
  static constexpr auto decided = rule::decided::running;
};

struct M06 {
  KEEL_RULE_TEXT("M06", "none known",
                 "a quantised base cannot be trained without adapters. Fix: keel::model::has<keel::model::adapters>, or remove "
                 "oom::quantize_base.");
  static constexpr bool broken(config const& c) {
    for (int i = 0; i < c.oom.count; ++i) {
      if (c.oom.rungs[i].kind == oom::rung_kind::quantize_base && !c.model.adapters) return true;
    }
    return false;
  }
};

using oom_rules = list<M06, O01, O02, O05, O06, O08, O10, O11, O15, O21, O22, O23>;
using oom_order_rules = list<O03, O09, O20>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
