// expect: A02
// says: reached by rung 1 of oom::ladder: [A02]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::partly_frozen,
                           keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::non_reentrant>, keel::oom::give_up>> {
};
#else
struct mine : keel::recipe<keel::model::partly_frozen,
                           keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
