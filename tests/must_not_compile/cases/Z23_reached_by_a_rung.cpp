// expect: Z23
// says: reached by rung 3 of oom::ladder: [Z23]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::optimizer::is<keel::optimizer::state_on_host>,
                           keel::oom::ladder<keel::oom::halve_micro_batch,
                                             keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#else
struct mine
    : keel::recipe<keel::optimizer::is<keel::optimizer::state_on_host>,
                   keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::enable_recompute<keel::recompute::reentrant>,
                                     keel::oom::offload_optimizer, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
