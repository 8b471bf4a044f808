// U: policies that can be named and checked, but that this version of keel does not implement. A recipe with one of them is valid. A step
// or trainer built from it does not compile, so that no policy is silently ignored. Implementing a policy removes the condition from its
// rule; the id stays reserved.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct U04 {
  KEEL_RULE_TEXT(
      "U04", "",
      "ZeRO-3 has no quantize_base, nonfinite::exceptions or parts in this version of keel. Fix: keel::shard::zero<2>, "
      "or a recipe without them.");
  static constexpr bool broken(config const& c) {
    bool const runs_alone = c.nonfinite.exceptions || c.run.is_part || c.run.has_parts;
    return c.shard.stage >= 3 && (runs_alone || oom::has_rung(c.oom, oom::rung_kind::quantize_base));
  }
};
struct U08 {
  KEEL_RULE_TEXT("U08", "",
                 "the alarms of GRPO and EBFT are not implemented in this version of keel. Fix: keel::health::off, "
                 "or sft with keel::objective::supervised.");
  static constexpr bool broken(config const& c) {
    return c.health.kind == health::kind::grpo || c.health.kind == health::kind::ebft;
  }
};
struct U09 {
  KEEL_RULE_TEXT("U09", "",
                 "GRPO and EBFT are not implemented in this version of keel. Fix: keel::objective::supervised, "
                 "with keel::health::sft or off.");
  static constexpr bool broken(config const& c) { return c.objective.kind != objective::kind::supervised; }
};
using rules_not_implemented = list<U04, U08, U09>;

/// Policies that only a trainer or a run implements; a bare step would ignore them.
struct U13 {
  KEEL_RULE_TEXT("U13", "", "a bare step saves no checkpoints. Fix: keel::trainer, or keel::checkpoint::never.");
  static constexpr bool broken(config const& c) { return c.checkpoint.kind != checkpoint::kind::never; }
};

struct U22 {
  KEEL_RULE_TEXT("U22", "", "a bare step does no seeding. Fix: keel::trainer, or keel::determinism::off and at::manual_seed.");
  static constexpr bool broken(config const& c) { return c.determinism.kind != determinism::kind::off; }
};
struct U23 {
  KEEL_RULE_TEXT(
      "U23", "",
      "a bare step has no console for warnings. Fix: keel::trainer, or keel::nonfinite::skip<10> and a look at the outcome.");
  static constexpr bool broken(config const& c) { return c.nonfinite.kind == nonfinite::kind::warn; }
};
struct U36 {
  KEEL_RULE_TEXT("U36", "",
                 "a bare step has no checkpoint to roll back to. Fix: keel::trainer, or keel::nonfinite::skip<10> and "
                 "keel::spike::skip<>.");
  static constexpr bool broken(config const& c) { return rolls_back(c); }
};
struct U37 {
  KEEL_RULE_TEXT("U37", "",
                 "a bare step does not evaluate by itself. Fix: keel::trainer, or keel::evaluation::none and "
                 "keel::evaluate, for a plateau with keel::accept<\"L24\">.");
  static constexpr bool broken(config const& c) { return c.evaluation.kind != evaluation::kind::none; }
};
struct U38 {
  KEEL_RULE_TEXT("U38", "", "a bare step listens for no signals. Fix: keel::trainer, or keel::timeout::none.");
  static constexpr bool broken(config const& c) { return c.timeout.grace > 0; }
};

struct U41 {
  KEEL_RULE_TEXT("U41", "", "a bare step watches no metrics. Fix: keel::trainer, or keel::health::off.");
  static constexpr bool broken(config const& c) {
    return c.health.kind == health::kind::sft || c.health.kind == health::kind::watch;
  }
};

struct U43 {
  KEEL_RULE_TEXT(
      "U43", "",
      "a bare step does not look at its batches. Fix: keel::trainer, or keel::batch_guard::on and keel::batch_watch.");
  static constexpr bool broken(config const& c) { return batch_guard::is_extended(c.batch_guard); }
};

struct U44 {
  KEEL_RULE_TEXT("U44", "", "a bare step records no profile. Fix: keel::trainer, or keel::profile::off.");
  static constexpr bool broken(config const& c) { return c.profile.kind != profile::kind::off; }
};

struct U46 {
  KEEL_RULE_TEXT("U46", "", "a bare step has no place for an incident. Fix: keel::trainer, or keel::incident::trace<3>.");
  static constexpr bool broken(config const& c) { return c.incident.kind == incident::kind::keep; }
};

struct U58 {
  KEEL_RULE_TEXT("U58", "",
                 "a bare step does not watch how long its run takes. Fix: keel::trainer, or remove soft, hard, first_update, "
                 "force_exit and heartbeat.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    return t.soft > 0 || t.hard > 0 || t.first_update > 0 || t.force_exit > 0 || t.heartbeat_interval > 0;
  }
};
using trainer_only_rules = list<U13, U22, U23, U36, U37, U38, U41, U43, U44, U46, U58>;

/// Settings that a run of several parts has once for all parts.
struct U52 {
  KEEL_RULE_TEXT("U52", "",
                 "checkpoints, evaluations, seeds, alarms, profiles and timeouts are those of the whole run. Fix: move them to "
                 "keel::run<recipe>.");
  static constexpr bool broken(config const& c) {
    return c.checkpoint.kind != checkpoint::kind::never || c.evaluation.kind != evaluation::kind::none ||
           c.determinism.kind != determinism::kind::off || c.health.kind != health::kind::off ||
           c.profile.kind != profile::kind::off || c.incident.kind == incident::kind::keep ||
           !(c.timeout == timeout::settings{}) || batch_guard::is_extended(c.batch_guard);
  }
};
using run_only_rules = list<U52>;
/// Settings that each part has for itself.
struct U53 {
  KEEL_RULE_TEXT(
      "U53", "",
      "a run of several parts makes no updates by itself, its parts do. Fix: move precision, clip, accumulate, guards and "
      "the like to keel::part<recipe>.");
  static constexpr bool broken(config const& c) {
    config const none{};
    return !(c.precision == none.precision && c.loss_scale == none.loss_scale && c.accumulate == none.accumulate &&
             c.clip == none.clip && c.nonfinite == none.nonfinite && c.spike == none.spike && c.schedule == none.schedule &&
             c.recompute == none.recompute && c.offload == none.offload && c.attention == none.attention && c.oom == none.oom &&
             c.ema == none.ema && c.objective == none.objective && c.shard.stage == 0);
  }
};
/// The program owns the loop of a run of several parts, so the run does not see an exception end it.
struct U54 {
  KEEL_RULE_TEXT("U54", "",
                 "a run of several parts cannot save on an exception, because its loop belongs to the program. Fix: remove "
                 "checkpoint::on_exception, and save more often.");
  static constexpr bool broken(config const& c) { return c.checkpoint.on_exception; }
};
using part_only_rules = list<U53, U54>;

/// Why a call of a step or trainer may be rejected.
struct U14 {
  KEEL_RULE_TEXT("U14", "",
                 "keel cannot count the rows of this batch type. Fix: give it rows() and slice(begin, end), or specialise "
                 "keel::batch_traits.");
};
struct U15 {
  KEEL_RULE_TEXT("U15", "",
                 "oom::halve_micro_batch cannot cut this batch type. Fix: give it slice(begin, end), or specialise "
                 "keel::batch_traits.");
};
struct U16 {
  KEEL_RULE_TEXT(
      "U16", "",
      "loss_of must take the batch by const& and return a tensor, keel::weighted_loss or keel::losses. Fix: change that, or "
      "sum its values.");
};
struct U17 {
  KEEL_RULE_TEXT(
      "U17", "",
      "this hook takes none of keel's events, so it would never be called. Fix: [](keel::event::update_end const& e) { .. }.");
};
struct U18 {
  KEEL_RULE_TEXT("U18", "",
                 "fit cannot iterate over these batches. Fix: a range, a LibTorch data loader, or a function of the epoch that "
                 "returns one.");
};

struct U19 {
  KEEL_RULE_TEXT(
      "U19", "",
      "this clip policy cannot be called. Fix: static void clip(std::span<at::Tensor const> gradients, double norm), "
      "or with its state& as third.");
};
struct U20 {
  KEEL_RULE_TEXT("U20", "",
                 "this schedule policy cannot be called. Fix: static double factor(std::int64_t update, std::int64_t total).");
};
struct U21 {
  KEEL_RULE_TEXT(
      "U21", "",
      "only a clip policy may keep state in this version of keel. Fix: remove the nested state of the other policy.");
};

struct U31 {
  KEEL_RULE_TEXT("U31", "", "this recipe keeps no average of the parameters. Fix: add keel::ema<0.999> to it.");
};

struct U32 {
  KEEL_RULE_TEXT(
      "U32", "",
      "these batches are looked at more than once, and can be read once or not at all. Fix: a vector, a view, a data loader, "
      "or a function of the epoch.");
};

/// Checked when a trainer or step inspects its optimizer.
struct U33 {
  KEEL_RULE_TEXT(
      "U33", "",
      "only keel's optimizers can keep their state off the device. Fix: keel::adamw, adam or sgd, or keel::offload::none.");
};
struct U34 {
  KEEL_RULE_TEXT("U34", "",
                 "oom::shorten_sequence cannot shorten this batch type. Fix: give it shortened(tokens), or specialise "
                 "keel::batch_traits.");
};
struct U35 {
  KEEL_RULE_TEXT("U35", "",
                 "your own rung does not say how it is taken. Fix: static bool take(torch::nn::Module& model), returning false "
                 "if it frees nothing.");
};

struct U39 {
  KEEL_RULE_TEXT("U39", "",
                 "keel calls no such member: of your own policies clip has a static clip(), schedule a static factor(). Fix: "
                 "remove the members, or write a hook.");
};

struct U42 {
  KEEL_RULE_TEXT(
      "U42", "",
      "an entry of keel::health::watch is not an alarm. Fix: static constexpr keel::health::alarm configured{..} in it, "
      "or health::sft.");
};

struct U45 {
  KEEL_RULE_TEXT(
      "U45", "",
      "an alarm is to save a checkpoint, and this recipe saves none. Fix: add keel::checkpoint::every<500_steps>, or "
      "bind keel::health::incident.");
};

struct U47 {
  KEEL_RULE_TEXT(
      "U47", "",
      "this recipe leaves numbers to the program and gets none. Fix: pass them behind the optimizer, as {.clip = 1.0, "
      ".accumulate = 4}.");
};
struct U48 {
  KEEL_RULE_TEXT(
      "U48", "",
      "this recipe leaves no number to the program. Fix: keel::given in place of the constant, or remove the numbers.");
};

struct U49 {
  KEEL_RULE_TEXT(
      "U49", "",
      "a backward pass of the program's own does not know the loss scale. Fix: keel::precision::bf16 without one, or "
      "step(batch, loss_of).");
};
struct U50 {
  KEEL_RULE_TEXT("U50", "",
                 "a ladder runs an update again, which a backward pass of the program's own cannot. Fix: keel::oom::raise, or "
                 "step(batch, loss_of).");
};

struct U51 {
  KEEL_RULE_TEXT(
      "U51", "",
      "a step or trainer refers to its model and optimizer, so it does not move. Fix: keel::owned<keel::step<..>>, which "
      "owns them and does.");
};

struct U56 {
  KEEL_RULE_TEXT("U56", "",
                 "this recipe replicates over ranks and gets none. Fix: keel::join() behind the optimizer, of "
                 "<keel/collective/join.hpp>; of a run of parts it comes first.");
};
struct U57 {
  KEEL_RULE_TEXT(
      "U57", "",
      "this recipe trains on one rank and gets several. Fix: add keel::shard::replicate to it, or leave the world out.");
};

struct U59 {
  KEEL_RULE_TEXT(
      "U59", "",
      "a run and its parts train on several ranks together or not at all. Fix: keel::shard::replicate in both recipes, "
      "or in neither.");
};

/// batch_guard::drop, for a batch type that it does not support.
struct U60 {
  KEEL_RULE_TEXT("U60", "",
                 "batch_guard::drop cannot leave rows out of this type of batch. Fix: list its tensors with `void visit(auto& "
                 "archive)`, or keel::batch_guard::check.");
};

using call_rules = list<U14, U15, U16, U17, U18, U19, U20, U21, U31, U32, U33, U34, U35, U39, U42, U45, U47, U48, U49, U50, U51,
                        U56, U57, U59, U60>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
