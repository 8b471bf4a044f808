// expect: A16
// says: reached by rung 1 of oom::ladder: [A16]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::has<keel::model::routing>,
                           keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::model::has<keel::model::routing>,
                           keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::non_reentrant>,
                                             keel::oom::halve_micro_batch, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
