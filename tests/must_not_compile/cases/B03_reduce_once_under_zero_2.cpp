// expect: B03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<4>, keel::shard::zero<2>> {};
#else
struct mine : keel::recipe<keel::accumulate<4, keel::reduce_once>, keel::shard::zero<2>> {};
#endif

template struct keel::checked<mine>;
