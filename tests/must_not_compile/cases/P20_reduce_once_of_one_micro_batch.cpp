// expect: P20
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<4, keel::reduce_once>, keel::shard::replicate> {};
#else
struct mine : keel::recipe<keel::accumulate<1, keel::reduce_once>, keel::shard::replicate> {};
#endif

template struct keel::checked<mine>;
