// expect: A04
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::non_reentrant, keel::model::has<keel::model::inner_gradients>> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::inner_gradients>> {};
#endif

template struct keel::checked<mine>;
