// expect: B21
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<1>> {};
#else
struct mine : keel::recipe<keel::accumulate<0>> {};
#endif

template struct keel::checked<mine>;
