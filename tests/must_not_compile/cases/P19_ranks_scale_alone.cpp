// expect: P19 N02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::shard::replicate> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::shard::replicate,
                           keel::nonfinite::raise_with<keel::nonfinite::rank_local> > {};
#endif

template struct keel::checked<mine>;
