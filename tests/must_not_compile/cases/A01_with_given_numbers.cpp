// expect: A01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<keel::given>, keel::recompute::reentrant, keel::shard::zero<3>> {};
#else
struct mine : keel::recipe<keel::accumulate<keel::given>, keel::recompute::non_reentrant, keel::shard::zero<3>> {};
#endif

template struct keel::checked<mine>;
