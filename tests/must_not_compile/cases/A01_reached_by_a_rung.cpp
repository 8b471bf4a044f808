// expect: A01
// says: reached by rung 2 of oom::ladder: [A01]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::zero<3>,
                           keel::oom::ladder<keel::oom::halve_micro_batch,
                                             keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::shard::zero<3>,
                           keel::oom::ladder<keel::oom::halve_micro_batch,
                                             keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {
};
#endif

template struct keel::checked<mine>;
