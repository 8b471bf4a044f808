// expect: P04
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::model::has<keel::model::half_parameters>> {
};
#endif

template struct keel::checked<mine>;
