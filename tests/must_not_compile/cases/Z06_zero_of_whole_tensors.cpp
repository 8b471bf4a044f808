// expect: Z06
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::replicate, keel::optimizer::is<keel::optimizer::whole_tensors>> {};
#else
struct mine : keel::recipe<keel::shard::zero<1>, keel::optimizer::is<keel::optimizer::whole_tensors>> {};
#endif

template struct keel::checked<mine>;
