// expect: G05
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::clip::adaptive<0.01>, keel::shard::zero<1>> {};
#else
struct mine : keel::recipe<keel::clip::adaptive<0.01>, keel::shard::zero<2>> {};
#endif

template struct keel::checked<mine>;
