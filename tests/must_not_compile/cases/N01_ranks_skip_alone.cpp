// expect: N01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::replicate, keel::nonfinite::skip<10>> {};
#else
struct mine : keel::recipe<keel::shard::replicate, keel::nonfinite::skip<10, keel::nonfinite::rank_local>> {};
#endif

template struct keel::checked<mine>;
