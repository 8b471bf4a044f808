// E: evaluation. X: profiler and graph capture. T: packing.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

/// trainer::evaluate_on asks it too, which sees whether the data ends.
struct E02 {
  KEEL_RULE_TEXT("E02", "Lightning (warns)",
                 "this evaluation never runs or never ends. Fix: an interval of at least 1, no negative option, and "
                 "keel::evaluation::batches<N> if its data is endless.");
  static constexpr bool broken(config const& c) {
    auto const& e = c.evaluation;
    if (e.kind == evaluation::kind::none) return false;
    return e.interval < 1 || e.batches < 0 || e.early_stop < 0 || e.not_before < 0 || !(e.min_delta >= 0.0);
  }
};

struct E04 {
  KEEL_RULE_TEXT("E04", "LibTorch, PyTorch",
                 "ranks that judge their own loss keep different checkpoints. Fix: offer what "
                 "keel::as_finite(keel::agree(world, loss)) returns.");
  static constexpr auto decided = rule::decided::call;
};

struct E05 {
  KEEL_RULE_TEXT(
      "E05", "LibTorch, PyTorch, Lightning (first k)",
      "a NaN may pass for the best value so far. Fix: offer what keel::as_finite(keel::agree(world, loss)) returns.");
  static constexpr auto decided = rule::decided::call;
};

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

struct X07 {
  KEEL_RULE_TEXT("X07", "none known",
                 "a profile longer than its period records nothing complete. Fix: keel::profile::every<1000_steps, warmup<1>, "
                 "active<3>>.");
  static constexpr bool broken(config const& c) {
    auto const& p = c.profile;
    return p.kind == profile::kind::every && (p.active < 1 || p.warmup < 0 || p.period < sum(p.warmup, p.active));
  }
};

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
                 "keel::objective::supervised.");
  static constexpr bool broken(config const& c) { return c.data.packed && c.objective.kind != objective::kind::supervised; }
};

struct E20 {
  KEEL_RULE_TEXT("E20", "",
                 "this evaluation is of a moving average that the recipe does not keep. Fix: add keel::ema<0.999>, or remove "
                 "keel::evaluation::averaged.");
  static constexpr bool broken(config const& c) {
    return c.evaluation.kind != evaluation::kind::none && c.evaluation.averaged && !c.ema.kept;
  }
};

struct E21 {
  KEEL_RULE_TEXT("E21", "",
                 "min_delta and not_before need early_stop; monitor and larger_is_better something that judges. Fix: "
                 "keel::evaluation::early_stop<5>, or remove them.");
  static constexpr bool broken(config const& c) {
    auto const& e = c.evaluation;
    if (e.kind == evaluation::kind::none) return false;
    bool const judges = e.early_stop != 0 || e.has_stop_at || e.stop_on_nonfinite || schedule::judges_evaluations(c.schedule) ||
                        c.checkpoint.metric == checkpoint::metric::evaluation_loss;
    return ((e.min_delta != 0.0 || e.not_before != 0) && e.early_stop == 0) || ((!e.monitor.empty() || e.larger) && !judges);
  }
};

using evaluation_rules = list<E02, E20, E21, X03, X07, X10, T01, T03>;
using evaluation_order_rules = list<E04, E05>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
