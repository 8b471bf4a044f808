// expect: P08
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::fixed<1024.0>> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::fixed<0.0>> {};
#endif

template struct keel::checked<mine>;
