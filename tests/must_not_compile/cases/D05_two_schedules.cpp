// expect: D05
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::schedule::cosine<>> {};
#else
struct mine : keel::recipe<keel::schedule::cosine<>, keel::schedule::linear<>> {};
#endif

template struct keel::checked<mine>;
