// expect: B12
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::objective::grpo<8>, keel::accumulate<1, keel::micro_batch<16>>> {};
#else
struct mine : keel::recipe<keel::objective::grpo<8>, keel::accumulate<1, keel::micro_batch<12>>> {};
#endif

template struct keel::checked<mine>;
