// expect: P10
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<1.0>>> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<0.0>>> {};
#endif

template struct keel::checked<mine>;
