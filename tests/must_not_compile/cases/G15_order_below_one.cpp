// expect: G15
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::clip::global_norm<1.0, keel::clip::order<1>>> {};
#else
struct mine : keel::recipe<keel::clip::global_norm<1.0, keel::clip::order<0.5>>> {};
#endif

template struct keel::checked<mine>;
