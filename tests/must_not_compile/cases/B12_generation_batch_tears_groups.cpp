// expect: B12
#include <keel/recipe.hpp>

#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::objective::grpo<8>, keel::accumulate<2, keel::micro_batch<4>>> {};
#else
struct mine : keel::recipe<keel::objective::grpo<8>, keel::accumulate<3, keel::micro_batch<4>>> {};
#endif

template struct keel::checked<mine>;
