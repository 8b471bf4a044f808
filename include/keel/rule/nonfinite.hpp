// N: non-finite values, spikes, and the responses to them.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct N03 {
  KEEL_RULE_TEXT("N03", "LibTorch, Axolotl, LLM Foundry",
                 "NaN is neither above nor below a threshold, so this test misses it. Fix: compare the value that "
                 "keel::as_finite(x) returns.");
  static constexpr auto decided = rule::decided::call;
};

struct N06 {
  KEEL_RULE_TEXT(
      "N06", "LibTorch, PyTorch, Lightning, Accelerate",
      "skipping without a limit can waste the whole run. Fix: a limit of at least 1, as in keel::nonfinite::skip<10>.");
  static constexpr bool broken(config const& c) { return c.nonfinite.kind != nonfinite::kind::raise && c.nonfinite.limit < 1; }
};

struct N09 {
  KEEL_RULE_TEXT("N09", "LibTorch",
                 "a rollback needs a checkpoint to load. Fix: add keel::checkpoint::every<10_min>, or skip instead "
                 "of rolling back.");
  static constexpr bool broken(config const& c) { return rolls_back(c) && c.checkpoint.kind == checkpoint::kind::never; }
};

struct N10 {
  KEEL_RULE_TEXT(
      "N10", "LibTorch",
      "a rollback that changes nothing meets the same NaN again. Fix: keel::nonfinite::skip_data, lower_lr or reseed.");
  static constexpr bool broken(config const& c) {
    return c.nonfinite.kind == nonfinite::kind::rollback && c.nonfinite.change == nonfinite::change::nothing;
  }
};

struct N11 {
  KEEL_RULE_TEXT("N11", "LibTorch",
                 "rolling back without a limit never ends. Fix: keel::nonfinite::attempts<3> in "
                 "nonfinite::rollback, keel::spike::attempts<3> in spike::rollback.");
  static constexpr bool broken(config const& c) {
    return (c.nonfinite.kind == nonfinite::kind::rollback && c.nonfinite.attempts < 1) ||
           (c.spike.kind == spike::kind::rollback && c.spike.attempts < 1);
  }
};

struct N12 {
  KEEL_RULE_TEXT("N12", "LibTorch, Lightning, Axolotl, KempnerForge",
                 "every kept checkpoint may be newer than the fault. Fix: a larger keel::checkpoint::keep<N>, or "
                 "keep_every<D> of whole intervals, shorter than the run.");
  static constexpr bool broken(config const& c) {
    // N06 and N29 report a limit of zero; their fix is at least 1.
    auto const counted = [](long long limit) { return limit > 1 ? limit : 1; };
    long long const patience = c.nonfinite.kind == nonfinite::kind::rollback ? counted(c.nonfinite.limit) : 0;
    long long const window = c.spike.kind == spike::kind::rollback ? sum(c.spike.window, counted(c.spike.limit)) : 0;
    // Checkpoints of keep_every are kept permanently, if the run is long enough to have one.
    bool const keeps_old = c.checkpoint.keep_every > 0 && (c.run.updates == 0 || c.checkpoint.keep_every < c.run.updates);
    return rolls_back(c) && !keeps_old && c.checkpoint.kind == checkpoint::kind::every_steps && c.checkpoint.interval > 0 &&
           product(sum(c.checkpoint.keep, -1), c.checkpoint.interval) < sum(patience, window);
  }
};

struct N13 {
  KEEL_RULE_TEXT("N13", "LibTorch, PyTorch, Lightning, torchtitan",
                 "a checkpoint of non-finite parameters would replace a good one. Fix: resume from the last good one at a "
                 "lower learning rate.");
  static constexpr auto decided = rule::decided::running;
};

struct N15 {
  KEEL_RULE_TEXT("N15", "LibTorch, PyTorch",
                 "a failed device assertion kills the process, so no update can be skipped. Fix: nonfinite::raise with "
                 "spike::ignore, or remove device_assert.");
  static constexpr bool broken(config const& c) {
    return c.device.device_assert && (c.nonfinite.kind != nonfinite::kind::raise || c.spike.kind != spike::kind::ignore);
  }
};

struct N19 {
  KEEL_RULE_TEXT(
      "N19", "LibTorch, LLM Foundry",
      "a window that takes rejected values hides later spikes. Fix: push what keel::accepted(outcome, value) returns.");
  static constexpr auto decided = rule::decided::call;
};

struct N26 {
  KEEL_RULE_TEXT("N26", "LibTorch, PyTorch",
                 "a branch before a collective needs a value that all ranks share. Fix: branch on what keel::agree(world, "
                 "value) returns.");
  static constexpr auto decided = rule::decided::call;
};

struct N27 {
  KEEL_RULE_TEXT("N27", "",
                 "these numbers cannot find a spike. Fix: finite ones: keel::spike::zscore<6.0>, window<2> and up, "
                 "ratio<4.0>, loss_above and gradient_norm_above over 0.");
  static constexpr bool broken(config const& c) {
    constexpr double largest = 1.7e308;
    auto const& s = c.spike;
    bool const ratio = s.ratio == 0.0 || (s.ratio > 1.0 && s.ratio < largest);
    bool const bounds =
        s.loss_above >= 0.0 && s.loss_above < largest && s.gradient_norm_above >= 0.0 && s.gradient_norm_above < largest;
    bool const sound = s.zscore > 0.0 && s.zscore < largest && s.window >= 2 && ratio && bounds;
    return c.spike.kind != spike::kind::ignore && !sound;
  }
};

struct N29 {
  KEEL_RULE_TEXT("N29", "",
                 "skipping spikes without a limit keeps a diverging run alive. Fix: keel::spike::in_a_row<10> in "
                 "spike::skip, in_a_row<1> in spike::rollback.");
  static constexpr bool broken(config const& c) { return c.spike.kind != spike::kind::ignore && c.spike.limit < 1; }
};

struct N30 {
  KEEL_RULE_TEXT("N30", "", "looking into 0 incidents looks into none. Fix: keel::incident::trace<3>, or keel::incident::off.");
  static constexpr bool broken(config const& c) { return c.incident.kind != incident::kind::off && c.incident.most < 1; }
};

struct N28 {
  KEEL_RULE_TEXT("N28", "",
                 "a rollback rereads data, and this data can be read only once. Fix: skip instead of rolling back, or use data "
                 "that can be reread.");
  static constexpr bool broken(config const& c) { return rolls_back(c) && c.data.single_pass; }
};

using nonfinite_rules = list<N06, N09, N10, N11, N12, N15, N27, N28, N29, N30>;
using nonfinite_order_rules = list<N03, N13, N19, N26>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
