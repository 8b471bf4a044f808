// expect: O23
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch,
                                             keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {
};
#else
struct mine
    : keel::recipe<keel::oom::ladder<keel::oom::halve_micro_batch, keel::recompute::non_reentrant, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
