// expect: A03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::none, keel::model::partly_frozen, keel::shard::zero<3>> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::partly_frozen, keel::shard::zero<3>> {};
#endif

template struct keel::checked<mine>;
