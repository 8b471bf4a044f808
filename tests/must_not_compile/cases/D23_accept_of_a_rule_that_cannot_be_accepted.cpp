// expect: D23
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::reentrant, keel::shard::zero<3>> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::shard::zero<3>, keel::accept<"A02">> {};
#endif

template struct keel::checked<mine>;
