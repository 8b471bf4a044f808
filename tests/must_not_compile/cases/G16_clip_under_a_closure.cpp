// expect: G16
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::optimizer::is<keel::optimizer::closure>> {};
#else
struct mine : keel::recipe<keel::clip::global_norm<1.0>, keel::optimizer::is<keel::optimizer::closure>> {};
#endif

template struct keel::checked<mine>;
