// Z, W: sharding, ranks.
#include "typed.hpp"

namespace optimizer = keel::optimizer;
using tied = keel::model::has<keel::model::tied_weights>;

namespace fixed {

inline constexpr keel::run_facts alone{.world_size = 1};
inline constexpr keel::run_facts four{.world_size = 4};

template <>
inline constexpr auto fixes<rule::given_twice<keel::slot::shard>> =
    said(FIX("keep one of keel::shard::{none, replicate, zero}", keel::shard::none), FIX("keep one of keel::shard::", keel::shard::replicate),
         FIX("keep one of keel::shard::", keel::shard::zero<2>));
template <>
inline constexpr auto fixes<rule::Z06> =
    said(FIX_BESIDE("an element-wise optimizer such as torch::optim::AdamW", "torch::optim::AdamW", keel::shard::zero<1>),
         FIX("keel::shard::replicate", keel::shard::replicate, optimizer::is<optimizer::whole_tensors>));
template <>
inline constexpr auto fixes<rule::Z09> = said(FIX("AdamW", keel::shard::replicate), FIX("SGD", keel::shard::replicate),
         FIX("keel::shard::none on one rank", keel::shard::none, optimizer::is<optimizer::closure>),
         FIX("keel::shard::none on one rank", keel::shard::none, keel::world::size<1>, optimizer::is<optimizer::closure>));
template <>
inline constexpr auto fixes<rule::Z11> =
    said(FIX("untie them", keel::shard::zero<3>), FIX("keel::shard::zero<2>", keel::shard::zero<2>, tied),
         FIX("keel::accept<\"Z11\">", keel::shard::zero<3>, tied, keel::accept<"Z11">));
template <>
inline constexpr auto fixes<rule::Z23> = said(FIX("keel::offload::none, no offload rung", keel::offload::none, optimizer::is<optimizer::state_on_host>,
             keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>));
template <>
inline constexpr auto fixes<rule::W01> =
    said(FIX("keel::shard::replicate with keel::world::size<N>", keel::shard::replicate, keel::world::size<8>),
         FIX_IN_RUN("keel::shard::replicate with keel::world::size<N> for N processes", four, keel::shard::replicate, keel::world::size<4>),
         FIX("size<1>", keel::world::size<1>), FIX_IN_RUN("size<1>, no WORLD_SIZE", alone, keel::world::size<1>));

template struct each_followed<rule::shard_rules>;

// Under sanitizers g++ 12 takes the text, which is put together, for no constant.
#ifndef __SANITIZE_ADDRESS__
template struct each_followed<rule::list<rule::given_twice<keel::slot::shard>>>;
#endif

}  // namespace fixed
