// expect: D21
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
template struct keel::checked<keel::recipe<keel::clip::global_norm<1.0>>>;
#else
template struct keel::checked<keel::clip::global_norm<1.0>>;
#endif
