// expect: L18
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::polynomial<keel::schedule::power<2.0>>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::power<2.0>>> {};
#endif

template struct keel::checked<mine>;
