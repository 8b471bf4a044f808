// expect: M02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::ema<0.999>, keel::shard::zero<2>> {};
#else
struct mine : keel::recipe<keel::ema<0.999>, keel::shard::zero<3>> {};
#endif

template struct keel::checked<mine>;
