// expect: A03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::recompute::reentrant,
                           keel::model::has<keel::model::adapters, keel::model::inputs_require_grad>, keel::shard::zero<3>> {};
#else
struct mine : keel::recipe<keel::recompute::reentrant, keel::model::has<keel::model::adapters>, keel::shard::zero<3>> {};
#endif

template struct keel::checked<mine>;
