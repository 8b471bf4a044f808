// expect: B24
#include <keel/recipe.hpp>

using ladder = keel::oom::ladder<keel::oom::halve_micro_batch, keel::oom::give_up>;
#ifdef KEEL_TWIN
struct mine : keel::recipe<keel::accumulate<4>, ladder> {};
#else
struct mine : keel::recipe<keel::accumulate<4, keel::sum>, ladder> {};
#endif

template struct keel::checked<mine>;
