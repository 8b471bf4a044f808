// expect: M10
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::no_ema> {};
#else
struct mine : keel::recipe<keel::ema<0.0> > {};
#endif

template struct keel::checked<mine>;
