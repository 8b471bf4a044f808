// expect: A16
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::none, keel::model::has<keel::model::routing>> {};
#else
struct mine : keel::recipe<keel::recompute::non_reentrant, keel::model::has<keel::model::routing>> {};
#endif

template struct keel::checked<mine>;
