// expect: A02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::non_reentrant, keel::model::partly_frozen> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::partly_frozen> {};
#endif

template struct keel::checked<mine>;
