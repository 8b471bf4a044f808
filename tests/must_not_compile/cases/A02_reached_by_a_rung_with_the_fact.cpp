// expect: A02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::model::has<keel::model::frozen, keel::model::inputs_require_grad>,
                           keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#else
struct mine : keel::recipe<keel::model::partly_frozen,
                           keel::oom::ladder<keel::oom::enable_recompute<keel::recompute::reentrant>, keel::oom::give_up>> {};
#endif

template struct keel::checked<mine>;
