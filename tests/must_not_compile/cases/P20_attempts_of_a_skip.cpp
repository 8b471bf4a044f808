// expect: P20
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::nonfinite::skip<10>> {};
#else
struct mine : keel::recipe<keel::nonfinite::skip<10, keel::nonfinite::attempts<3>>> {};
#endif

template struct keel::checked<mine>;
