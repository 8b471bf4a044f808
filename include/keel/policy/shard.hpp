// shard: what each rank of a data-parallel run stores.
//   none         the default: one process.
//   replicate    full replicas; gradients are averaged.
//   zero<1>      shards the optimizer's state: with AdamW in fp32, 8 bytes per parameter are distributed over all ranks instead of stored
//                on each. Results are bitwise those of replicate. Each update additionally all-gathers the parameters.
//   zero<2>      also shards gradients: each rank keeps 1/ranks of them, from one micro-batch to the next too. Gradients are sent during
//                every backward pass, so accumulation costs as many sums as there are micro-batches. The joint norm is a sum over shards,
//                which may round differently; without clipping and with accumulate<1>, results are bitwise those of replicate.
//   zero<3>      also shards the parameters of each keel::unit (Rajbhandari et al. 2020, "ZeRO"), which are gathered while the unit
//                computes, in the forward and in the backward pass. Results are bitwise those of zero<2>. Each
//                rank writes and reads its slices of a checkpoint; gather_parameters() needs memory for the whole model on each rank.
//                keel::shard_parameters shards a model while it is built that is larger than the memory of one rank.
// Left out: tensor, pipeline and expert parallelism, which change the model rather than the run.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct shard;
}

namespace keel::shard {

enum class kind : unsigned char { none, replicate, zero };

struct settings {
  shard::kind kind = kind::none;
  int stage = 0;  ///< stage of ZeRO, 1 to 3
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// True if several ranks train one model, each on its own rows.
constexpr bool is_distributed(settings const& s) { return s.kind != kind::none; }

struct none : fills<slot::shard> {
  static constexpr settings configured{};
};
struct replicate : fills<slot::shard> {
  static constexpr settings configured{kind::replicate, 0};
};
template <int Stage>
  requires(Stage >= 1 && Stage <= 3)
struct zero : fills<slot::shard> {
  static constexpr settings configured{kind::zero, Stage};
};

}  // namespace keel::shard

namespace keel {

struct slot::shard : slot_description {
  using settings = keel::shard::settings;
  using default_policy = keel::shard::none;
  static constexpr char const* name = "shard";
  static constexpr char const* given_twice = "Z01";
  static constexpr policy_list<settings, 3> policies() {
    return {{{"none", {}},
             {"replicate", {keel::shard::kind::replicate}},
             {"zero", {keel::shard::kind::zero}, " stage ", "stage", true}}};
  }
  static constexpr void fields(auto& s, auto& field) { field.number_between("stage", s.stage, 1, 3); }
};

}  // namespace keel
