// expect: L15
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::min_lr<1e-5>>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<keel::schedule::min_ratio<0.1>, keel::schedule::min_lr<1e-5>>> {};
#endif

template struct keel::checked<mine>;
