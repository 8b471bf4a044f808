// expect: Z11
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::shard::zero<2>, keel::model::has<keel::model::tied_weights>> {};
#else
struct mine : keel::recipe<keel::shard::zero<3>, keel::model::has<keel::model::tied_weights>> {};
#endif

template struct keel::checked<mine>;
