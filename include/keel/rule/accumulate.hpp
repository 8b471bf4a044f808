// B: accumulation and the algebra of batch sizes.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct B01 {
  KEEL_RULE_TEXT("B01",
                 "the global batch is not micro-batch x accumulation x world size. Fix: make keel::global_batch<G> that "
                 "product, or leave it out.");
  static constexpr bool broken(config const& c) {
    auto const& batch = c.accumulate;
    if (batch.global_batch == 0 || batch.count < 1) return false;
    long long const rows_a_rank = (batch.micro_batch > 0 ? batch.micro_batch : 1) * batch.count;
    bool const world_known = c.run.known || c.shard.kind == shard::kind::none;
    if (batch.micro_batch > 0 && world_known) return batch.global_batch != rows_a_rank * c.run.world_size;
    return batch.global_batch % (rows_a_rank * c.run.world_size) != 0;
  }
};

struct B21 {
  KEEL_RULE_TEXT("B21",
                 "batch sizes and accumulation must be at least 1. Fix: keel::accumulate<1>, and no zero or negative "
                 "micro_batch or global_batch.");
  static constexpr bool broken(config const& c) {
    return c.accumulate.count < 1 || c.accumulate.micro_batch < 0 || c.accumulate.global_batch < 0;
  }
};

struct B11 {
  KEEL_RULE_TEXT(
      "B11", "a group of one has no advantage over itself. Fix: keel::objective::grpo<8>, at least 2 completions a prompt.");
  static constexpr bool broken(config const& c) {
    return c.objective.kind != objective::kind::supervised && c.objective.group < 2;
  }
};

using accumulate_rules = list<B01, B21, B11>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
