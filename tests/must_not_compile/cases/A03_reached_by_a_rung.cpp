// expect: A03
// says: reached by rung 3 of oom::ladder: [A03]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::partly_frozen, keel::shard::zero<3>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer, keel::oom::give_up>> {
};
#else
struct mine : keel::recipe<keel::model::partly_frozen, keel::shard::zero<3>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::offload_optimizer,
                                             keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
