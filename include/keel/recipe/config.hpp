// The recipe as one value: what rules, checkpoints and printers read. A recipe folds into it at compile time
// (config_of), a tool may fill it at run time, and both go through the same rules.
#pragma once

#include <keel/policy/policies.hpp>

namespace keel {

/// What is known only when a trainer is built. A rule that needs one of these looks at `known` first.
struct run_facts {
  bool known = false;
  long long world_size = 1;                             ///< ranks
  long long updates = 0;                                ///< length of the run; 0: not limited
  double learning_rate = 0.0;                           ///< the smallest of the optimizer's parameter groups
  bool half_kernels = true;                             ///< the device computes in fp16
  bool bfloat16_kernels = true;                         ///< the device computes in bf16
  keel::device::kind device = keel::device::kind::any;  ///< that the parameters are on, if it is one of these
  friend constexpr bool operator==(run_facts const&, run_facts const&) = default;
};

struct config {
  // Each member's name is its slot's, so the types are qualified from the root.
  keel::precision::settings precision{};
  keel::loss_scale::settings loss_scale{};
  accumulate_settings accumulate{};
  keel::clip::settings clip{};
  keel::nonfinite::settings nonfinite{};
  keel::spike::settings spike{};
  keel::schedule::settings schedule{};
  keel::checkpoint::settings checkpoint{};
  recompute_settings recompute{};
  keel::shard::settings shard{};
  keel::offload::settings offload{};
  attention_settings attention{};
  keel::oom::settings oom{};
  keel::health::settings health{};
  keel::determinism::settings determinism{};
  keel::objective::settings objective{};
  ema_settings ema{};
  keel::evaluation::settings evaluation{};
  keel::profile::settings profile{};
  keel::timeout::settings timeout{};
  keel::model::settings model{};
  keel::optimizer::settings optimizer{};
  keel::data::settings data{};
  keel::device::settings device{};
  keel::world::settings world{};

  short_name own_clip{};      ///< the name of a clip policy of your own
  short_name own_schedule{};  ///< and of a schedule

  unsigned repeated = 0;        ///< bit i: slot i was given more than once
  int strangers = 0;            ///< types in the list that are neither policy, rule nor accept
  int disagreeing_options = 0;  ///< policies with options that contradict each other
  int unitless_intervals = 0;   ///< policies whose interval is a number without a unit
  int unsaved_states = 0;       ///< stateful policies that do not say how they are saved
  int unsound_rules = 0;        ///< rules of the user's own that are not written as keel/rule/rule.hpp says
  int accepted_count = 0;
  rule_id accepted[max_accepted] = {};  ///< of accept<"B06">; what does not fit counts in accepted_count alone

  run_facts run{};

  constexpr bool gives_twice(slot which) const { return (repeated >> static_cast<int>(which) & 1U) != 0; }
  constexpr bool accepts(char const* id) const {
    rule_id const wanted(id);
    for (int i = 0; i < accepted_count && i < max_accepted; ++i) {
      if (accepted[i] == wanted) return true;
    }
    return false;
  }

  friend constexpr bool operator==(config const&, config const&) = default;
};

}  // namespace keel
