// S: checkpoints and their contents.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct S01 {
  KEEL_RULE_TEXT("S01", "LibTorch, Lightning, KempnerForge",
                 "asynchronous saving with keep<1> leaves the only checkpoint half-written. Fix: keel::checkpoint::keep<2>.");
  static constexpr bool broken(config const& c) {
    return c.checkpoint.kind != checkpoint::kind::never && c.checkpoint.asynchronous && c.checkpoint.keep < 2;
  }
};

struct S05 {
  KEEL_RULE_TEXT(
      "S05", "LibTorch, PyTorch, KempnerForge",
      "a policy has state that no checkpoint saves. Fix: give its state `void visit(auto& archive)` that names every field.");
  static constexpr bool broken(config const& c) { return c.unsaved_states > 0; }
};

struct S24 {
  KEEL_RULE_TEXT("S24", "",
                 "checkpoint interval, keep, failures and keep_k_best must be at least 1. Fix: such numbers, as in "
                 "keel::checkpoint::every<500_steps, keep<2>, failures<3>>.");
  static constexpr bool broken(config const& c) {
    bool const timed = c.checkpoint.kind != checkpoint::kind::never && c.checkpoint.kind != checkpoint::kind::young_daly;
    bool const kept = c.checkpoint.keep >= 1 && c.checkpoint.failures >= 1 && c.checkpoint.best_count >= 0;
    return (timed && c.checkpoint.interval < 1) || (c.checkpoint.kind != checkpoint::kind::never && !kept);
  }
};

struct S25 {
  KEEL_RULE_TEXT("S25", "",
                 "young_daly needs to know how often the machine fails. Fix: "
                 "keel::checkpoint::mean_time_between_failures<24_h>.");
  static constexpr bool broken(config const& c) {
    return c.checkpoint.kind == checkpoint::kind::young_daly && c.checkpoint.mean_time_between_failures < 1;
  }
};

struct S11 {
  KEEL_RULE_TEXT("S11", "Lightning (save_top_k=1)",
                 "the best checkpoint has no metric or no evaluation. Fix: on_best and by_evaluation_loss with "
                 "keel::evaluation::every, or keep_best with by_training_loss.");
  static constexpr bool broken(config const& c) {
    bool const evaluates = c.checkpoint.metric == checkpoint::metric::evaluation_loss;
    bool const evaluation_is_there = c.evaluation.kind != evaluation::kind::none;
    return (c.checkpoint.best && c.checkpoint.metric == checkpoint::metric::none) ||
           (c.checkpoint.best && evaluates && !evaluation_is_there) || (c.checkpoint.on_best && !evaluates);
  }
};

struct S13 {
  KEEL_RULE_TEXT("S13", "",
                 "keep_every asks for checkpoints that are never saved. Fix: remove keep_every, or make it a "
                 "multiple of a keel::checkpoint::every<D> in steps.");
  static constexpr bool broken(config const& c) {
    auto const& s = c.checkpoint;
    if (s.kind == checkpoint::kind::never || s.keep_every == 0) return false;
    if (s.keep_every < 0 || s.kind != checkpoint::kind::every_steps) return true;
    // S24 reports an interval of zero.
    return s.interval > 0 && s.keep_every % s.interval != 0;
  }
};

struct S12 {
  KEEL_RULE_TEXT("S12", "Lightning (warns)",
                 "a save has no fresh evaluation. Fix: checkpoint::every a multiple of evaluation::every, both in "
                 "steps or in epochs, or on_best with by_evaluation_loss.");
  static constexpr bool broken(config const& c) {
    bool const keeps_best = c.checkpoint.best && c.checkpoint.metric == checkpoint::metric::evaluation_loss;
    // Saves by wall-clock time only serve to resume, and an early stop saves when it ends the run.
    bool const stops_early = c.evaluation.early_stop > 0 && (c.checkpoint.kind == checkpoint::kind::every_steps ||
                                                             c.checkpoint.kind == checkpoint::kind::every_epochs);
    if (!keeps_best && !stops_early) return false;
    // A save that follows its evaluation is always judged, and S11 requires an evaluation.
    if (c.checkpoint.on_best) return false;
    // S11 reports that there is none.
    if (c.evaluation.kind == evaluation::kind::none) return false;
    bool const both_in_steps =
        c.checkpoint.kind == checkpoint::kind::every_steps && c.evaluation.kind == evaluation::kind::every;
    bool const both_in_epochs =
        c.checkpoint.kind == checkpoint::kind::every_epochs && c.evaluation.kind == evaluation::kind::every_epochs;
    if (!both_in_steps && !both_in_epochs) return true;
    // E28 reports an interval of zero.
    return c.evaluation.interval > 0 && c.checkpoint.interval % c.evaluation.interval != 0;
  }
};

struct S26 {
  KEEL_RULE_TEXT("S26", "",
                 "a metric without keep_best has no effect. Fix: remove it, or keep_best by_training_loss, or "
                 "on_best by_evaluation_loss with keel::evaluation::every.");
  static constexpr bool broken(config const& c) {
    return !c.checkpoint.best && c.checkpoint.metric != checkpoint::metric::none;
  }
};

/// Loading and saving while the run continues; checked by trainer and store.
struct S16 {
  KEEL_RULE_TEXT("S16", "LibTorch, PyTorch, Accelerate, Lightning",
                 "a checkpoint in mid-window would lose its gradients. Fix: call request_save() in a hook, or save() once the "
                 "step has ended.");
  static constexpr auto decided = rule::decided::running;
};
struct S17 {
  KEEL_RULE_TEXT("S17", "LibTorch, PyTorch, KempnerForge",
                 "a save requested by one rank alone leaves the others behind. Fix: save_if(keel::agree(world, flag)), or "
                 "request_save().");
  static constexpr auto decided = rule::decided::call;
};
struct S19 {
  KEEL_RULE_TEXT("S19", "Transformers, Lightning, torchtitan, KempnerForge",
                 "the checkpoint is at or past the run's end, so nothing would train. Fix: raise options.updates, or use "
                 "another run directory.");
  static constexpr auto decided = rule::decided::running;
};

/// A field of saved state; checked by everything that visits fields.
struct S27 {
  KEEL_RULE_TEXT("S27", "",
                 "a state lists a field that no checkpoint can hold. Fix: an integer, float, double, std::string, at::Tensor, "
                 "std::vector of these, or a type with `visit`.");
  static constexpr auto decided = rule::decided::call;
};

using checkpoint_rules = list<S01, S05, S11, S12, S13, S24, S25, S26>;
using checkpoint_order_rules = list<S16, S17, S19, S27>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
