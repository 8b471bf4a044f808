// expect: P03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::bf16> {};
#else
struct mine : keel::recipe<keel::precision::bf16, keel::precision::fp32> {};
#endif

template struct keel::checked<mine>;
