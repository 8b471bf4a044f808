// expect: D03
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::nonfinite::skip<10>> {};
#else
struct mine : keel::recipe<keel::nonfinite::skip<10>, keel::nonfinite::raise> {};
#endif

template struct keel::checked<mine>;
