// expect: D24
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<1>> {};
#else
struct mine : keel::recipe<keel::accumulate<1>, keel::accept<"B06">> {};
#endif

template struct keel::checked<mine>;
