// expect: D21
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::precision::bf16> {};
#else
struct mine {};
#endif

template struct keel::checked<mine>;
