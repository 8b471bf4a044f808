// shard: what each rank of a data-parallel run holds.
//   none         the default: one process.
//   replicate    everything everywhere, gradients averaged.
//   zero<1>      the optimizer's state in shares: with AdamW in fp32, 8 bytes a parameter over all ranks and not on each. The bits are
//                replicate's, and each update sends the parameters once more.
//   zero<2>      gradients in shares too; zero<3> parameters too (Rajbhandari et al. 2020, "ZeRO"). Not built yet (U04).
// Left out: tensor, pipeline and expert parallelism; they change the model, not the run.
#pragma once

#include <keel/policy/slot.hpp>

namespace keel::slot {
struct shard;
}

namespace keel::shard {

enum class kind : unsigned char { none, replicate, zero };

struct settings {
  shard::kind kind = kind::none;
  int stage = 0;  ///< of ZeRO, 1 to 3
  friend constexpr bool operator==(settings const&, settings const&) = default;
};

/// Ranks train one model, each with its own rows.
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
