// expect: N18
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::replicate, keel::spike::skip<>> {};
#else
struct mine : keel::recipe<keel::shard::replicate, keel::spike::skip<keel::spike::rank_local>> {};
#endif

template struct keel::checked<mine>;
