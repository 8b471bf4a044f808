// expect: D02
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<4>> {};
#else
struct mine : keel::recipe<keel::accumulate<4>, keel::accumulate<8>> {};
#endif

template struct keel::checked<mine>;
