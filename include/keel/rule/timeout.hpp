// H: timeouts and liveness. A duration that is not set breaks nothing.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

/// True unless both are set and the first is not below the second.
constexpr bool in_order(long long shorter, long long longer) { return shorter == 0 || longer == 0 || shorter < longer; }

struct H01 {
  KEEL_RULE_TEXT("H01", "none known",
                 "timeouts must grow from soft to hard to collective, or the kill comes before the report. Fix: "
                 "keel::timeout::soft<1_min>, hard<5_min>.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    return !in_order(t.soft, t.hard) || !in_order(t.hard, t.collective) || !in_order(t.soft, t.collective);
  }
};

struct H02 {
  KEEL_RULE_TEXT("H02", "none known",
                 "a rank is called dead before it can speak. Fix: keel::timeout::heartbeat<5_s, 30_s> with the interval below "
                 "soft, the limit below collective.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    return !in_order(t.heartbeat_interval, t.heartbeat_limit) || !in_order(t.heartbeat_interval, t.soft) ||
           !in_order(t.heartbeat_limit, t.collective);
  }
};

struct H03 {
  KEEL_RULE_TEXT("H03", "LibTorch, KempnerForge",
                 "the scheduler kills before keel's own exit can fire. Fix: keel::timeout::force_exit<D> below "
                 "keel::timeout::grace<D>.");
  static constexpr bool broken(config const& c) { return !in_order(c.timeout.force_exit, c.timeout.grace); }
};

struct H04 {
  KEEL_RULE_TEXT("H04", "LibTorch, PyTorch, Lightning, KempnerForge",
                 "the run is ended before it can finish an update and save. Fix: keel::timeout::grace and force_exit above "
                 "longest_update plus longest_save.");
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    long long const end = t.force_exit > 0 && t.force_exit < t.grace ? t.force_exit : t.grace;
    return t.grace > 0 && end <= sum(t.longest_update, t.longest_save);
  }
};

struct H07 {
  KEEL_RULE_TEXT("H07", "LibTorch, PyTorch, Accelerate, DeepSpeed",
                 "the first update is slower than what the timeouts allow. Fix: keel::timeout::collective and hard above "
                 "first_update, or keel::accept<\"H07\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) {
    auto const& t = c.timeout;
    return !in_order(t.first_update, t.collective) || !in_order(t.first_update, t.hard);
  }
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

using timeout_rules = list<H01, H02, H03, H04, H07, H13>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
