// expect: A16
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::routing>, keel::accept<"A16">> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::routing>> {};
#endif

template struct keel::checked<mine>;
