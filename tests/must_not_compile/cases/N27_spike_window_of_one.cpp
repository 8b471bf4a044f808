// expect: N27
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::spike::skip<keel::spike::window<128>>> {};
#else
struct mine : keel::recipe<keel::spike::skip<keel::spike::window<1>>> {};
#endif

template struct keel::checked<mine>;
