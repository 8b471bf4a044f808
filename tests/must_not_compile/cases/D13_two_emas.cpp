// expect: D13
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::ema<0.99>> {};
#else
struct mine : keel::recipe<keel::ema<0.99>, keel::ema<0.999>> {};
#endif

template struct keel::checked<mine>;
