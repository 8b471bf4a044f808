// expect: G06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::clip::global_norm<1.0>, keel::shard::zero<2>> {};
#else
struct mine : keel::recipe<keel::clip::global_norm<1.0, keel::clip::order<1>>, keel::shard::zero<2>> {};
#endif

template struct keel::checked<mine>;
