// expect: D22
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::data::is<keel::data::ragged>, keel::accumulate<2>, keel::accept<"B06">> {};
#else
struct mine : keel::recipe<keel::accumulate<2>, keel::accept<"B60">> {};
#endif

template struct keel::checked<mine>;
