// expect: Z01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::zero<2>> {};
#else
struct mine : keel::recipe<keel::shard::zero<2>, keel::shard::replicate> {};
#endif

template struct keel::checked<mine>;
