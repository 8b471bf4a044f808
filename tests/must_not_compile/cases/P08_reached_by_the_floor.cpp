// expect: P08
// says: reached by loss_scale::floor: [P08]
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<1.0>>> {};
#else
struct mine : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<keel::loss_scale::floor<1e-40>>> {};
#endif

template struct keel::checked<mine>;
