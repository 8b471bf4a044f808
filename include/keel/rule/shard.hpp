// Z: sharding. W: the world.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct Z06 {
  KEEL_RULE_TEXT("Z06", "PyTorch (FSDP1), Lightning, Accelerate",
                 "this optimizer needs whole tensors, which ZeRO splits. Fix: an element-wise optimizer such as "
                 "torch::optim::AdamW, or keel::shard::replicate.");
  static constexpr bool broken(config const& c) { return c.optimizer.whole_tensors && c.shard.stage >= 1; }
};

struct Z08 {
  KEEL_RULE_TEXT("Z08", "none known",
                 "two optimizers on one model share no step that can be guarded. Fix: one optimizer with two parameter groups; "
                 "for a GAN, a keel::part for each model.");
  static constexpr auto decided = rule::decided::call;
};

struct Z09 {
  KEEL_RULE_TEXT("Z09", "none known",
                 "an optimizer with a closure runs backward passes that ranks do not agree on. Fix: AdamW or SGD, "
                 "or keel::shard::none on one rank.");
  static constexpr bool broken(config const& c) { return c.optimizer.closure && c.shard.kind != shard::kind::none; }
};

struct Z11 {
  KEEL_RULE_TEXT("Z11", "PyTorch",
                 "under ZeRO-3 a unit that frees a tied weight frees it for uses outside of units, too. Fix: untie them, "
                 "keel::shard::zero<2>, or keel::accept<\"Z11\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.model.tied_weights && c.shard.stage == 3; }
};

struct Z16 {
  KEEL_RULE_TEXT("Z16", "Accelerate, DeepSpeed (before PR 7665)",
                 "the loss function called backward() itself, without scale or weight. Fix: return the loss; inside it use "
                 "torch::autograd::grad.");
  static constexpr auto decided = rule::decided::running;
};

struct Z23 {
  KEEL_RUNG_RULE_TEXT("Z23", "",
                      "this optimizer already keeps its state in host memory. Fix: keel::offload::none, no offload rung.");
  static constexpr bool broken(config const& c) {
    return c.offload.kind == offload::kind::optimizer && c.optimizer.state_on_host;
  }
};

struct W01 {
  KEEL_RULE_TEXT("W01", "none known",
                 "the recipe's ranks are not those it shards or runs on. Fix: keel::shard::replicate with "
                 "keel::world::size<N> for N processes, or size<1>, no WORLD_SIZE.");
  static constexpr bool broken(config const& c) {
    if (c.world.declared && c.world.ranks < 1) return true;
    long long const ranks = c.run.known ? c.run.world_size : c.world.ranks;
    bool const idle_ranks = ranks > 1 && c.shard.kind == shard::kind::none;
    return idle_ranks || (c.run.known && c.world.declared && c.world.ranks != c.run.world_size);
  }
};

using shard_rules = list<Z06, Z09, Z11, Z23, W01>;
using shard_order_rules = list<Z08, Z16>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
