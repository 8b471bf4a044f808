// Z: sharding. W: the world.
#include "example.hpp"

namespace judged {

namespace optimizer = keel::optimizer;
namespace shard = keel::shard;
using offloaded = keel::offload::optimizer;
using keel::world::size;

template <>
struct example<rule::given_twice<keel::slot::shard>> : recipes<recipe<shard::zero<2>, shard::replicate>, recipe<shard::zero<2>>> {};

using whole_tensors = optimizer::is<optimizer::whole_tensors>;
template <>
struct example<rule::Z06> : recipes<recipe<shard::zero<1>, whole_tensors>, recipe<shard::replicate, whole_tensors>> {};
static_assert(breaks<rule::Z06>(of<shard::zero<3>, whole_tensors>));
static_assert(keeps(of<shard::zero<1>>));

using with_closure = optimizer::is<optimizer::closure>;
template <>
struct example<rule::Z09> : recipes<recipe<shard::replicate, with_closure>, recipe<shard::none, with_closure>> {};
static_assert(breaks<rule::Z09>(of<shard::zero<1>, with_closure>));
static_assert(keeps(of<shard::replicate>));

using tied = keel::model::has<keel::model::tied_weights>;
template <>
struct example<rule::Z11> : recipes<recipe<shard::zero<3>, tied>, recipe<shard::zero<2>, tied>> {};
static_assert(keeps(of<shard::zero<3>>));

using on_host = optimizer::is<optimizer::state_on_host>;
template <>
struct example<rule::Z23> : recipes<recipe<offloaded, on_host>, recipe<offloaded>> {};
static_assert(keeps(of<on_host>));

template <>
struct example<rule::W01> : recipes<recipe<size<2>>, recipe<size<1>>> {};
static_assert(keeps(of<shard::replicate, size<2>>) && keeps(of<shard::replicate, size<1>>));
static_assert(breaks<rule::W01>(of<size<0>>) && breaks<rule::W01>(of<shard::replicate, size<-1>>));
static_assert(keeps(in_run(of<shard::replicate, size<2>>, {.world_size = 2})));
static_assert(breaks<rule::W01>(in_run(of<shard::replicate, size<2>>, {.world_size = 1})) &&
              breaks<rule::W01>(in_run(of<shard::replicate, size<2>>, {.world_size = 3})));
static_assert(breaks<rule::W01>(in_run(of<size<1>>, {.world_size = 2})));
static_assert(keeps(in_run(of<shard::replicate>, {.world_size = 2})));
// Ranks that nothing shards over, as the run counts them.
static_assert(breaks<rule::W01>(in_run(of<>, {.world_size = 2})) && keeps(in_run(of<>, {.world_size = 1})));
static_assert(breaks<rule::W01>(in_run(of<size<2>>, {.world_size = 2})) &&
              breaks<rule::W01>(in_run(of<size<2>>, {.world_size = 1})));
static_assert(keeps({.run = {.world_size = 2}}));
static_assert(keeps({.world = size<1>::configured, .run = {.world_size = 2}}));

template struct each_shown<rule::shard_rules>;

}  // namespace judged
