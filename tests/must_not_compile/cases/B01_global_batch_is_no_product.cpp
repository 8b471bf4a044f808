// expect: B01
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<8>>> {};
#else
struct mine : keel::recipe<keel::accumulate<4, keel::micro_batch<2>, keel::global_batch<9>>> {};
#endif

template struct keel::checked<mine>;
