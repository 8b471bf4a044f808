// expect: D08
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::attention::fused> {};
#else
struct mine : keel::recipe<keel::attention::fused, keel::attention::math> {};
#endif

template struct keel::checked<mine>;
