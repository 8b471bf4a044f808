// expect: A17
// says: reached by rung 2 of oom::ladder: [A17]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::has<keel::model::batch_norm>,
                           keel::oom::ladder<keel::oom::offload_optimizer, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::model::has<keel::model::batch_norm>,
                           keel::oom::ladder<keel::oom::offload_optimizer,
                                             keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {
};
#endif

template struct keel::checked<mine>;
