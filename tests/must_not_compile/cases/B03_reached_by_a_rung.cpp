// expect: B03
// says: reached by rung 2 of oom::ladder: [B03]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<1>, keel::shard::zero<2>,
                           keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::halve_micro_batch, keel::oom::give_up>> {
};
#else
struct mine : keel::recipe<keel::accumulate<1, keel::reduce_once>, keel::shard::zero<2>,
                           keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::halve_micro_batch, keel::oom::give_up>> {
};
#endif

template struct keel::checked<mine>;
