// B: accumulation, the algebra of batch sizes, and groups of rows that belong together.
#pragma once

#include <keel/rule/detail/text_begin.inc>
#include <keel/rule/rule.hpp>

namespace keel::rule {

struct B01 {
  KEEL_RULE_TEXT("B01", "LibTorch, PyTorch",
                 "the global batch is not micro-batch x accumulation x world size. Fix: set keel::global_batch<G> to that "
                 "product, or leave it out.");
  static constexpr bool broken(config const& c) {
    auto const& batch = c.accumulate;
    if (batch.global_batch == 0 || batch.count < 1) return false;
    long long const rows_a_rank = product(batch.micro_batch > 0 ? batch.micro_batch : 1, batch.count);
    bool const world_known = c.run.known || (c.shard.kind == shard::kind::none && !c.world.declared);
    long long const known = c.run.known ? c.run.world_size : c.world.ranks;
    long long const ranks = known > 0 ? known : 1;
    if (batch.micro_batch > 0 && (world_known || c.world.ranks > 0)) return batch.global_batch != product(rows_a_rank, ranks);
    return batch.global_batch % product(rows_a_rank, ranks) != 0;
  }
};

struct B03 {
  KEEL_RUNG_RULE_TEXT(
      "B03", "DeepSpeed (before 0.16)",
      "ZeRO-2 and 3 shard gradients as they arrive, so none are left to reduce once. Fix: remove keel::reduce_once.");
  static constexpr bool broken(config const& c) {
    return c.accumulate.reduce_once && c.shard.stage >= 2 && c.accumulate.count > 1;
  }
};

struct B06 {
  KEEL_RUNG_RULE_TEXT(
      "B06", "LibTorch, PyTorch, Lightning, KempnerForge",
      "a mean of means favours short batches. Fix: weighted_loss with data::token_weighted, or keel::accept<\"B06\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) {
    return c.data.ragged && !c.data.token_weighted && (c.accumulate.count > 1 || several_ranks(c));
  }
};

struct B08 {
  KEEL_RULE_TEXT("B08", "LibTorch, PyTorch, torchtitan, Lightning",
                 "a rank whose data ends early leaves the others waiting in a collective. Fix: add keel::data::drops_last to "
                 "keel::data::is.");
  static constexpr bool broken(config const& c) { return several_ranks(c) && c.data.finite && !c.data.drops_last; }
};

struct B10 {
  KEEL_RULE_TEXT("B10", "PyTorch",
                 "the data has fewer rows than ranks, so some rank gets none. Fix: the correct keel::data::rows<N> "
                 "from 1 on, and no more ranks than rows.");
  static constexpr bool broken(config const& c) {
    long long const ranks = c.run.known ? c.run.world_size : c.world.ranks;
    return c.data.rows < 0 || (c.data.rows > 0 && c.data.rows < ranks);
  }
};

struct B11 {
  KEEL_RULE_TEXT("B11", "none known",
                 "a group of one has no relative advantage. Fix: at least 2 completions per prompt that divide the "
                 "batch, as in keel::objective::grpo<8>, ebft<8>.");
  static constexpr bool broken(config const& c) {
    return c.objective.kind != objective::kind::supervised && c.objective.group < 2;
  }
};

struct B12 {
  KEEL_RULE_TEXT("B12", "none known",
                 "generation batches that are not a multiple of the group split prompts. Fix: micro_batch x "
                 "accumulate x ranks, and keel::global_batch<N>, divisible by it.");
  static constexpr bool broken(config const& c) {
    long long const group = c.objective.group;
    if (c.objective.kind == objective::kind::supervised || group < 2) return false;
    if (c.accumulate.count < 1) return false;  // reported by B21
    // Checks the rows generated for one update over all ranks. Micro-batches may split groups, because the advantages are known by then.
    if (c.accumulate.global_batch % group != 0) return true;
    // A recipe that shards without declaring the world has an unknown number of ranks.
    if (c.shard.kind != shard::kind::none && !c.run.known && c.world.ranks < 1) return false;
    long long const ranks = c.run.known ? c.run.world_size : c.world.ranks;
    return product(product(c.accumulate.micro_batch, c.accumulate.count), ranks > 1 ? ranks : 1) % group != 0;
  }
};

struct B15 {
  KEEL_RULE_TEXT("B15", "none known",
                 "halving a micro-batch of unknown size may split a group. Fix: keel::micro_batch<N> of an even "
                 "number of groups, or keel::data::is<keel::data::grouped>.");
  static constexpr bool broken(config const& c) {
    bool const groups = c.objective.kind != objective::kind::supervised && c.objective.group > 1;
    return groups && halves(c) && c.accumulate.micro_batch == 0 && !c.data.grouped;
  }
};

struct B21 {
  KEEL_RULE_TEXT("B21", "",
                 "batch sizes and accumulation must be at least 1. Fix: keel::accumulate<1>, with a positive "
                 "micro_batch and their product as global_batch, or without both.");
  static constexpr bool broken(config const& c) {
    return c.accumulate.count < 1 || c.accumulate.micro_batch < 0 || c.accumulate.global_batch < 0;
  }
};

struct B22 {
  KEEL_RULE_TEXT("B22", "none known",
                 "data cannot both end and be endless. Fix: keep one of keel::data::finite and keel::data::endless.");
  static constexpr bool broken(config const& c) { return c.data.finite && c.data.endless; }
};

struct B23 {
  KEEL_RULE_TEXT("B23", "TRL (GRPO's default)",
                 "dropout gives a completion another log-probability in each pass. Fix: a model without dropout, or "
                 "keel::accept<\"B23\">.");
  static constexpr bool may_be_accepted = true;
  static constexpr bool broken(config const& c) { return c.model.dropout && c.objective.kind != objective::kind::supervised; }
};

struct B24 {
  KEEL_RULE_TEXT("B24", "",
                 "keel::sum adds whole micro-batches, and a piece of one does not say its share. Fix: remove "
                 "keel::sum, or above accumulate<1> the rung halve_micro_batch.");
  static constexpr bool broken(config const& c) { return c.accumulate.sum && halves(c); }
};

using accumulate_rules = list<B01, B03, B06, B08, B10, B11, B12, B15, B21, B22, B23, B24>;

}  // namespace keel::rule

#include <keel/rule/detail/text_end.inc>
