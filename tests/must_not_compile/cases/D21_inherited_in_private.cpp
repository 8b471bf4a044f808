// expect: D21
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
class mine : public keel::recipe<keel::precision::bf16> {};
#else
class mine : keel::recipe<keel::precision::bf16> {};
#endif

template struct keel::checked<mine>;
