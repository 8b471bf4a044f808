// expect: P11
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::bf16, keel::optimizer::is<keel::optimizer::closure>> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>, keel::optimizer::is<keel::optimizer::closure>> {
};
#endif

template struct keel::checked<mine>;
