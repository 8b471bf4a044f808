// H: timeouts and liveness, and the checkpoint rules that depend on them (E31, S23). A duration that is not set breaks no rule.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

/// True unless both durations are set and the first is not below the second.
constexpr bool in_order(long long shorter, long long longer) { return shorter == 0 || longer == 0 || shorter < longer; }

struct H01 {
  KEEL_RULE_TEXT("H01", "none known",
                 "timeouts must grow from soft to hard to collective, or a rank is killed before it is reported. "
                 "Fix: keel::timeout::hard above soft, collective above both.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    return !in_order(t.soft, t.hard) || !in_order(t.hard, t.collective) || !in_order(t.soft, t.collective);
  }
};

struct H02 {
  KEEL_RULE_TEXT("H02", "none known",
                 "a rank is declared dead before it can report. Fix: keel::timeout::heartbeat<5_s, 30_s>, interval below soft, "
                 "limit below collective.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    return !in_order(t.heartbeat_interval, t.heartbeat_limit) || !in_order(t.heartbeat_interval, t.soft) ||
           !in_order(t.heartbeat_limit, t.collective);
  }
};

struct H03 {
  KEEL_RULE_TEXT("H03", "LibTorch, KempnerForge",
                 "the scheduler kills the run before keel can exit by itself. Fix: keel::timeout::force_exit below "
                 "grace and above longest_update plus longest_save.");
  static constexpr bool broken(config const& c) { return !in_order(c.timeout.force_exit, c.timeout.grace); }
};

struct H04 {
  KEEL_RULE_TEXT("H04", "LibTorch, PyTorch, Lightning, KempnerForge",
                 "the run is killed before it can finish an update and save. Fix: keel::timeout::grace above "
                 "longest_update plus longest_save, force_exit between them.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    long long const end = t.force_exit > 0 && t.force_exit < t.grace ? t.force_exit : t.grace;
    return t.grace > 0 && end <= sum(t.longest_update, t.longest_save);
  }
};

struct H07 {
  KEEL_RULE_TEXT("H07", "LibTorch, PyTorch, Accelerate, DeepSpeed",
                 "the first update takes longer than the timeouts allow. Fix: keel::timeout::collective and hard above "
                 "first_update, or keel::accept<\"H07\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    return !in_order(t.first_update, t.collective) || !in_order(t.first_update, t.hard);
  }
};

struct E31 {
  KEEL_RULE_TEXT("E31", "LibTorch, PyTorch",
                 "a save outlasts the collective in which other ranks wait for it. Fix: keel::timeout::collective above "
                 "longest_save, or keel::accept<\"E31\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return !in_order(c.timeout.longest_save, c.timeout.collective); }
};

struct H10 {
  KEEL_RULE_TEXT("H10", "none known",
                 "an update may take longer than soft or hard allows, and is not a hang. Fix: keel::timeout::soft "
                 "over longest_update, hard over soft, collective over hard.");
  static constexpr bool broken(config const& c) {
    return !in_order(c.timeout.longest_update, c.timeout.soft) || !in_order(c.timeout.longest_update, c.timeout.hard);
  }
};

struct S23 {
  KEEL_RULE_TEXT("S23", "LibTorch, PyTorch, torchtitan",
                 "a run that is stopped within its grace saves nothing to go on from. Fix: "
                 "keel::checkpoint::every<10_min>, or remove keel::timeout::grace.");
  static constexpr bool broken(config const& c) { return c.timeout.grace > 0 && c.checkpoint.kind == checkpoint::kind::never; }
};

struct H13 {
  KEEL_RULE_TEXT("H13", "", "a timeout cannot be negative. Fix: a duration such as 30_s or 10_min.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    long long const all[] = {t.soft,  t.hard,       t.collective,     t.first_update, t.heartbeat_interval, t.heartbeat_limit,
                             t.grace, t.force_exit, t.longest_update, t.longest_save};
    for (long long const one : all) {
      if (one < 0) return true;
    }
    return false;
  }
};

using timeout_rules = list<H01, H02, H03, H04, H07, H10, H13, E31, S23>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
