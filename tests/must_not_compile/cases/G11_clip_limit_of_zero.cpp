// expect: G11
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::clip::global_norm<1.0>> {};
#else
struct mine : keel::recipe<keel::clip::global_norm<0.0>> {};
#endif

template struct keel::checked<mine>;
