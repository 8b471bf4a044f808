// expect: A02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine
    : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::adapters, keel::model::inputs_require_grad>> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::adapters>> {};
#endif

template struct keel::checked<mine>;
