// expect: A17
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::batch_norm>, keel::accept<"A17">> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::batch_norm>> {};
#endif

template struct keel::checked<mine>;
