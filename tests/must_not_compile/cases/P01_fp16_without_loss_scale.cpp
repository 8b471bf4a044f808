// expect: P01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};
#else
struct mine : keel::recipe<keel::precision::fp16> {};
#endif

template struct keel::checked<mine>;
