// expect: L03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::min_ratio<0.1>>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::min_ratio<1.1>>> {};
#endif

template struct keel::checked<mine>;
