// expect: N02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::replicate, keel::nonfinite::raise> {};
#else
struct mine : keel::recipe<keel::shard::replicate, keel::nonfinite::raise_with<keel::nonfinite::rank_local> > {};
#endif

template struct keel::checked<mine>;
