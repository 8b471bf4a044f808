// expect: M10
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::ema<0.999>> {};
#else
struct mine : keel::recipe<keel::ema<2>> {};
#endif

template struct keel::checked<mine>;
