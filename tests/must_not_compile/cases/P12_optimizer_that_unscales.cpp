// expect: P12
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::optimizer::is<keel::optimizer::unscales>, keel::clip::global_norm<1.0>> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::optimizer::is<keel::optimizer::unscales>> {
};
#endif

template struct keel::checked<mine>;
