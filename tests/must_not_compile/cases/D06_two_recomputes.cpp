// expect: D06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::reentrant> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::recompute::non_reentrant> {};
#endif

template struct keel::checked<mine>;
