// expect: D01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::loss_scale::fixed<1024.0>> {};
#endif

template struct keel::checked<mine>;
