// expect: Z09
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::none, keel::optimizer::is<keel::optimizer::closure>> {};
#else
struct mine : keel::recipe<keel::shard::replicate, keel::optimizer::is<keel::optimizer::closure>> {};
#endif

template struct keel::checked<mine>;
